"""What the neurons of a feed-forward layer do in a run: how active they are, what they write, and what is lost without them.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂                                               (Vaswani et al. 2017, §3.3)

What neuron n writes is its activation × its row of W₂ (Geva et al. 2021, arXiv:2012.14913: feed-forward layers are key-value
memories), which through the unembedding favours some tokens. Its activity is the norm of that: |activation| × ‖row of W₂‖.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.analysis.ablation import logits_with
from xformer.errors import EditError, UnavailableError
from xformer.memory import check_analysis
from xformer.reading import Reading
from xformer.subjects import BareModel, Subject

FIRING_SHARE = 1e-6
"""A neuron fires where its activity is more than this share of the layer's mean peak: the mean over its neurons of the largest
activity of each. One that never fires is dead. The 0 of a ReLU writes nothing."""
MOST_TOKENS = 2048
"""Of a larger vocabulary so many tokens are told of."""


def activations(
    reading: Reading, *, layer: int, stage: str = "post", positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """One row per position (all, unless `positions` are given): position, token, and a column for each neuron.

    `stage` is "post", after the activation function, or "pre", before it; with a gate "post" is the product of what the
    function makes of the gate and of "up", what that is multiplied with.
    """
    site = reading.feed_forward_site(layer)
    values, tokens = reading[f"{site.path}.{stage}"][0], reading.tokens_of(site.stack)  # [pos, d_ff]
    shown = list(range(len(values)) if positions is None else positions)
    table = pd.DataFrame(values[shown].numpy(force=True))
    table.insert(0, "position", shown)
    table.insert(1, "token", [tokens[position] for position in shown])
    return table


def neuron(reading: Reading, *, layer: int, neuron: int, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """One neuron's activation: position, token, activation."""
    table = activations(reading, layer=layer, positions=positions)
    return table[["position", "token"]].assign(activation=table[neuron])


@torch.no_grad()
def written_norms(subject: Subject, path: str) -> Float[Tensor, " d_ff"] | None:
    """The norm of what each neuron of a layer writes at an activation of 1; None where no single matrix writes it."""
    try:
        own = subject.weights.projection(path)
    except UnavailableError:
        return None
    return own.weight.float().norm(dim=1) * abs(own.factor)


def activity(reading: Reading, *, layer: int) -> Float[Tensor, "pos d_ff"]:
    """|activation| × the norm of the vector that each neuron writes.

    Where those vectors are out of reach (`written_norms` is None), it is |activation|.
    """
    path = reading.feed_forward_site(layer).path
    size, norms = reading[f"{path}.post"][0].abs(), written_norms(reading.subject, path)
    return size if norms is None else size * norms


def fires_above(peak: Float[Tensor, " d_ff"], norms: Float[Tensor, " d_ff"] | None) -> Float[Tensor, " d_ff"]:
    """The |activation| above which each neuron fires, see `FIRING_SHARE`.

    Args:
        peak: the largest |activation| of each neuron.
        norms: what `written_norms` gives.
    """
    norms = torch.ones_like(peak) if norms is None else norms
    least = FIRING_SHARE * (peak * norms).mean() / norms
    return least.masked_fill(norms == 0, torch.inf)


def top_neurons(reading: Reading, *, layer: int, position: int, n: int = 10) -> list[int]:
    """The `n` most active neurons at a position, see `activity`, the most active first."""
    here = activity(reading, layer=layer)[position]  # [d_ff]
    return here.topk(min(n, len(here))).indices.tolist()


def speaks_directly(reading: Reading, layer: int) -> bool:
    """Whether the layer stands on the stream that is unembedded: an encoder-decoder's encoder does not."""
    return reading.feed_forward_site(layer).stack == reading.output_stack


@torch.no_grad()
def direct_logit_effect(
    reading: Reading, layer: int, neurons: Sequence[int] | None = None
) -> Float[Tensor, "neuron vocab"]:
    """W₂ W_U: what one unit of each neuron's activation (all, unless some are given) adds to each logit on the direct path to
    the unembedding.

    The path is the whole truth in the last layer of a model without norms. Elsewhere it leaves out what later layers make
    of it, and that every norm in between rescales it. Raises `UnavailableError` where the matrices are out of reach, and
    `InputError` where the result is too large.
    """
    weights = reading.subject.weights
    own = weights.projection(reading.feed_forward_site(layer).path)
    written = own.weight if neurons is None else own.weight[list(neurons)]  # [neuron, d_model]
    matrix = weights.unembedding().matrix  # [vocab, d_model]
    check_analysis("direct_logit_effect", "name some neurons", neurons=len(written), vocab=len(matrix))
    return (written if own.factor == 1.0 else written * own.factor) @ matrix.T


def promotion(reading: Reading, *, layer: int, position: int, n: int = 10) -> pd.DataFrame:
    """What the `n` most active neurons at a position add to each logit there: neuron, token, adds (activation × direct effect).

    Of a vocabulary of more than `MOST_TOKENS` the tokens are there that any of the neurons changes most. Raises `EditError`
    for a layer whose stream is not unembedded.
    """
    if not speaks_directly(reading, layer):
        raise EditError(f"{reading.feed_forward_site(layer).path} writes to a stream that is not unembedded.")
    chosen, labels = top_neurons(reading, layer=layer, position=position, n=n), reading.subject.labels
    post = reading[f"{reading.feed_forward_site(layer).path}.post"][0, position, chosen]  # [neuron]
    effect = direct_logit_effect(reading, layer, chosen) * post[:, None]  # [neuron, vocab]
    tokens = torch.arange(effect.shape[1])
    if len(tokens) > MOST_TOKENS:
        tokens = effect.abs().amax(dim=0).topk(MOST_TOKENS).indices.sort().values
        effect = effect[:, tokens]
    return pd.DataFrame(
        {
            "neuron": np.repeat(chosen, len(tokens)),
            "token": np.tile(np.asarray([labels[token] for token in tokens.tolist()], dtype=object), len(chosen)),
            "adds": effect.flatten().double().numpy(force=True),
        }
    )


def silenced_one_by_one(reading: Reading, layer: int, neurons: Sequence[int]) -> Iterator[Float[Tensor, "pos vocab"]]:
    """The logits as the run was, and then with each of `neurons` silenced; the edits, padding and mask of the run stay on.

    Of a model of ours they run as one batch, so that they round alike; of another one by one: a large vocabulary is held once.
    """
    name = f"{reading.feed_forward_site(layer).path}.post"
    silent = [(slice(0),), *((..., neuron) for neuron in neurons)]  # first nothing
    at_once = len(silent) if isinstance(reading.subject, BareModel) else 1
    for begin in range(0, len(silent), at_once):
        yield from logits_with(reading, [(name, where) for where in silent[begin : begin + at_once]])


def neurons(
    reading: Reading,
    *,
    layer: int,
    position: int,
    n: int = 10,
    favourites: int = 3,
    before: Reading | None = None,
) -> pd.DataFrame:
    """The `n` most active neurons at a position.

    Returns:
        One row per neuron: neuron, activation, activity (see `activity`), originally (the activation in the run `before`,
        where one is given), the tokens that it promotes and suppresses here (where the layer's stream is unembedded), and
        what silencing it does, measured by running the model: loss_change, in nats, over the labelled outputs, and flips,
        how many of their likeliest tokens change. A model without an output head has no loss: NaN, and 0 flips.
    """
    name, labels = f"{reading.feed_forward_site(layer).path}.post", reading.subject.labels
    chosen = top_neurons(reading, layer=layer, position=position, n=n)
    found = {"activation": reading[name][0], "activity": activity(reading, layer=layer)}  # [pos, d_ff]
    table = pd.DataFrame({"neuron": chosen} | {name: of[position, chosen].tolist() for name, of in found.items()})
    if before is not None:
        table["originally"] = before[name][0, position, chosen].tolist()
    if speaks_directly(reading, layer):
        with suppress(UnavailableError):  # then its matrices are out of reach
            sign = torch.where(found["activation"][position, chosen] < 0, -1.0, 1.0)  # [neuron]
            effect = direct_logit_effect(reading, layer, chosen) * sign[:, None]  # [neuron, vocab]
            most = min(favourites, effect.shape[1])
            for column, end in (("promotes", effect), ("suppresses", -effect)):
                table[column] = [
                    " ".join(labels[token] for token in order) for order in end.topk(most).indices.tolist()
                ]
    if not reading.has_logits:
        return table.assign(loss_change=math.nan, flips=0)
    answers = reading.example.labels[0]
    labelled: Bool[Tensor, " out"] = answers >= 0
    right = answers[labelled]
    losses, said = [], []
    for logits in silenced_one_by_one(reading, layer, chosen):
        losses.append(F.cross_entropy(logits[labelled], right).item())
        said.append(logits[labelled].argmax(dim=-1))  # [right]
    changes = [loss - losses[0] for loss in losses[1:]]
    return table.assign(loss_change=changes, flips=[int((one != said[0]).sum()) for one in said[1:]])
