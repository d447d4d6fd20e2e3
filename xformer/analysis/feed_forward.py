"""Neurons of feed-forward layers: activations, what they write, the effect of ablating them, and surveys over many inputs.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂                                               (Vaswani et al. 2017, §3.3)

What neuron n writes is its activation × its row of W₂ (Geva et al. 2021, arXiv:2012.14913: feed-forward layers are key-value
memories), which through the unembedding favours some tokens. Its activity is the norm of that: |activation| × ‖row of W₂‖.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters import BareModel, ModelAdapter, TaskModel, own_task_model
from xformer.analysis.ablation import logits_with
from xformer.checkpoints import Checkpoint
from xformer.errors import EditError, UnavailableError
from xformer.memory import check_analysis
from xformer.reading import Reading, adapter_of
from xformer.site import Site
from xformer.trace import record

FIRING_SHARE = 1e-6
"""A neuron fires where its activity is more than this share of the layer's mean peak: the mean over its neurons of the largest
activity of each. One that never fires is dead. The 0 of a ReLU writes nothing."""
MOST_TOKENS = 2048
"""The most tokens in a table of promotions; of larger vocabularies those that change most."""


def activations(
    reading: Reading, *, layer: int, stage: str = "post", positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """One row per position (all, unless `positions` are given): position, token, and a column for each neuron.

    `stage` is "post", after the activation function, or "pre", before it; with a gate "post" is the product of what the
    function makes of the gate and of "up", what that is multiplied with.

    Args:
        reading: The run.
        layer: The layer, from 0.
        stage: "pre" or "post" the nonlinearity.
        positions: The positions, from 0; all of them by default.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.activations(reading, layer=1)
        >>> table.shape  # rows are positions, columns are neurons
        (5, 514)
    """
    site = reading.feed_forward_site(layer)
    values, tokens = reading[f"{site.path}.{stage}"][0], reading.tokens_of(site.stack)  # [pos, d_ff]
    shown = list(range(len(values)) if positions is None else positions)
    table = pd.DataFrame(values[shown].numpy(force=True))
    table.insert(0, "position", shown)
    table.insert(1, "token", [tokens[position] for position in shown])
    return table


def neuron(reading: Reading, *, layer: int, neuron: int, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """The activation of one neuron, one row a position: position, token, activation.

    Args:
        reading: The run.
        layer: The layer, from 0.
        neuron: The neuron, from 0.
        positions: The positions, from 0; all of them by default.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neuron(reading, layer=1, neuron=7)
        >>> list(table.columns)
        ['position', 'token', 'activation']
    """
    table = activations(reading, layer=layer, positions=positions)
    return table[["position", "token"]].assign(activation=table[neuron])


@torch.no_grad()
def written_norms(subject: ModelAdapter, path: str) -> Float[Tensor, " d_ff"] | None:
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

    Args:
        reading: The run.
        layer: The layer, from 0.
        position: The position, from 0.
        n: The number of neurons.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.promotion(reading, layer=3, position=0)
        >>> list(table.columns)
        ['neuron', 'token', 'adds']
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

    Args:
        reading: The run.
        layer: The layer, from 0.
        position: The position, from 0.
        n: The number of neurons.
        favourites: How many tokens to name that a neuron promotes, and suppresses.
        before: The original run, to compare with.

    Returns:
        One row per neuron: neuron, activation, activity (see `activity`), originally (the activation in the run `before`,
        where one is given), the tokens that it promotes and suppresses here (where the layer's stream is unembedded), and
        what silencing it does, measured by running the model: loss_change, in nats, over the labelled outputs, and flips,
        how many of their likeliest tokens change. A model without an output head has no loss: NaN, and 0 flips.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neurons(reading, layer=1, position=0)
        >>> list(table.columns)
        ['neuron', 'activation', 'activity', 'promotes', 'suppresses', 'loss_change', 'flips']
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
    losses, predicted = [], []
    for logits in silenced_one_by_one(reading, layer, chosen):
        losses.append(F.cross_entropy(logits[labelled], right).item())
        predicted.append(logits[labelled].argmax(dim=-1))  # [right]
    changes = [loss - losses[0] for loss in losses[1:]]
    return table.assign(loss_change=changes, flips=[int((one != predicted[0]).sum()) for one in predicted[1:]])


MOST_TOKENS_AT_ONCE = 4096
"""Of a batch: so that a step takes a moment and little memory."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What the neurons did over many inputs, or over those that were run so far; each dict is by the path of the layer."""

    subject: TaskModel
    n_inputs: int
    """How many inputs were run …"""
    n_asked: int
    """… of so many that were sampled."""
    seed: int
    n_positions: dict[str, int]
    fired: dict[str, Int[Tensor, " d_ff"]]
    """At how many positions each neuron fired."""
    least: dict[str, Float[Tensor, " d_ff"]]
    """The |activation| above which each neuron fires; the layer's mean peak is that of the first input."""
    peak: dict[str, Float[Tensor, "best d_ff"]]
    """The activations of each neuron that are largest in size, one per input, largest first …"""
    where: dict[str, Int[Tensor, "best d_ff 2"]]
    """… and where: (input, position)."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens that the encoder's or the only stack's layers read."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that an encoder-decoder's decoder read; else empty."""
    path: str | None = None
    """Where the model was loaded from, if that is known."""

    @property
    def is_final(self) -> bool:
        """Whether all were run that were sampled."""
        return self.n_inputs == self.n_asked

    @property
    def recipe(self) -> str | None:
        """The call that counts it again."""
        first = "" if self.is_final else f", first={self.n_inputs}"
        return self.path and f"xformer.analysis.survey({self.path!r}, {self.n_asked}, {self.seed}{first})"

    def read_by(self, site: Site) -> tuple[tuple[int, ...], ...]:
        """The tokens of every input that a layer reads."""
        return self.targets if self.targets and site.stack == "decoder" else self.inputs


def fitting(subject: TaskModel, work: float = 2e11, most: int = 2000) -> int:
    """How many inputs of the task a survey may run for so much `work`, in floating-point operations; at least 16."""
    config, longest = subject.model.config, max(subject.task.longest)
    token = 2 * sum(parameter.numel() for parameter in subject.model.parameters())
    token += 4 * longest * config.n_layers * config.n_heads * config.d_head
    return max(16, min(most, int(work / (token * longest))))


def survey(
    where: str | Path | Checkpoint | TaskModel, n: int = 2000, seed: int = 0, *, best: int = 8, first: int | None = None
) -> Survey:
    """Run a model on `n` inputs sampled from its task (the "test" stream, so never trained on) and count what fires.

    The same (n, seed) gives the same inputs. `first` runs only so many of them. Raises `InputError` for a model without a task.

    Args:
        where: A checkpoint with a task, or its folder.
        n: The number of inputs.
        seed: The seed of the random numbers.
        best: How many inputs to keep for each neuron.
        first: Run only so many of the inputs.

    Returns:
        The survey.

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.firing(survey)
    """
    *_, found = surveying(where, n, seed, best=best, first=first)
    return found


def surveying(
    where: str | Path | Checkpoint | TaskModel,
    n: int = 2000,
    seed: int = 0,
    *,
    best: int = 8,
    batch: int | None = None,
    first: int | None = None,
) -> Iterator[Survey]:
    """The same step by step: what was found so far, after each batch of inputs.

    `batch` bounds the memory and the time of a step, and changes nothing else.
    """
    subject = own_task_model(adapter_of(where))
    task, path = subject.task, str(where) if isinstance(where, str | Path) else None
    n_asked = min(n, task.rule.unseen or n)
    sample = task.sample(n_asked, seed=seed)
    n = n_asked if first is None else min(n_asked, first)
    batch = max(1, min(250, MOST_TOKENS_AT_ONCE // max(task.longest))) if batch is None else batch
    pad = task.vocabulary.special.pad
    inputs = _sequences(sample.tokens, -1 if subject.shape.image else pad)
    targets = () if sample.target is None else _sequences(sample.target, pad)
    sites = subject.shape.feed_forward
    positions = {site.path: 0 for site in sites}
    fired: dict[str, Tensor] = {}
    least: dict[str, Tensor] = {}
    peak: dict[str, Tensor] = {}
    place: dict[str, Tensor] = {}
    for start in range(0, n, batch):
        end = min(start + batch, n)
        rows = sample.rows(start, end)
        valid = rows.valid  # [batch, pos], or None: no padding
        target_valid = None if rows.target is None else rows.target != pad
        keep = [f"{layer}.post" for layer in positions]
        trace = record(
            subject.model, rows.tokens, rows.target, valid=valid, target_valid=target_valid, keep=keep, fused=True
        )
        for site in sites:
            layer = site.path
            real = target_valid if target_valid is not None and site.stack == "decoder" else valid
            post = trace[f"{layer}.post"]  # [batch, pos, d_ff]
            if real is None:
                real = post.new_ones(post.shape[:2], dtype=torch.bool)
            size = post.abs().masked_fill(~real[..., None], -1.0)  # what is padding is never the largest
            if layer not in least:
                least[layer] = fires_above(size[0].amax(dim=0), written_norms(subject, layer))
            positions[layer] += int(real.sum())
            count = (size > least[layer]).flatten(0, 1).sum(dim=0, dtype=torch.int32)  # [d_ff]
            top = size.max(dim=1)  # [batch, d_ff]
            row = top.values.topk(min(best, len(post)), dim=0).indices  # [best, d_ff]
            at = top.indices.gather(0, row)  # [best, d_ff]
            values = post.gather(1, top.indices[:, None])[:, 0].gather(0, row)  # [best, d_ff], with their signs
            found = torch.stack((start + row, at), dim=-1)  # [best, d_ff, 2]
            if layer in peak:  # the best so far and those of this batch
                values, found = torch.cat((peak[layer], values)), torch.cat((place[layer], found))
                row = values.abs().topk(min(best, len(values)), dim=0).indices
                values, found = values.gather(0, row), found.gather(0, row[..., None].expand(-1, -1, 2))
            peak[layer], place[layer] = values, found
            fired[layer] = fired[layer] + count if layer in fired else count
        counted = dict(positions), dict(fired), dict(least), dict(peak), dict(place)
        yield Survey(subject, end, n_asked, seed, *counted, inputs, targets, path)


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


def firing(of: Reading | Survey) -> pd.DataFrame:
    """One row per feed-forward layer, of a run (its padding left out) or of a survey.

    Columns: layer, over (what was counted over), measure (of activity: "written", or "activation" where what the neurons write
    is out of reach), neurons, dead (how many fire nowhere), share_dead, share_ever (that fire anywhere), share_at_once (that
    fire at an average position).

    Args:
        of: A run or a survey.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.firing(reading)
        >>> list(table.columns)
        ['layer', 'over', 'measure', 'neurons', 'dead', 'share_dead', 'share_ever', 'share_at_once']
    """
    rows = []
    for site in of.subject.shape.feed_forward:
        if isinstance(of, Survey):
            over, count, n_positions = f"{of.n_inputs:,} inputs", of.fired[site.path], of.n_positions[site.path]
        else:
            post, real = of[f"{site.path}.post"][0], of.trace.real(site.stack)
            post = post if real is None else post[real]  # [pos, d_ff]
            least = fires_above(post.abs().amax(dim=0), written_norms(of.subject, site.path))
            over, count, n_positions = "this input", (post.abs() > least).sum(dim=0), len(post)
        dead = int((count == 0).sum())
        rows.append(
            {
                "layer": site.path,
                "over": over,
                "measure": "activation" if written_norms(of.subject, site.path) is None else "written",
                "neurons": len(count),
                "dead": dead,
                "share_dead": dead / len(count),
                "share_ever": 1 - dead / len(count),
                "share_at_once": count.sum().item() / (len(count) * n_positions),
            }
        )
    return pd.DataFrame(rows)


def exciting_inputs(of: Survey, *, layer: int, neuron: int) -> pd.DataFrame:
    """The inputs at which a neuron writes most in a survey, each once, the most first; none where the neuron is dead.

    Columns: input (its number), position, token (what stands there), activation, tokens (all that it reads, of a text).

    Args:
        of: The survey.
        layer: The layer, from 0.
        neuron: The neuron, from 0.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.exciting_inputs(survey, layer=1, neuron=7)
        >>> list(table.columns)
        ['input', 'position', 'token', 'activation', 'tokens']
    """
    site = of.subject.shape.feed_forward[layer]
    peaks, places = of.peak[site.path][:, neuron].tolist(), of.where[site.path][:, neuron].tolist()
    rows = []
    for value, (index, position) in zip(peaks, places, strict=True):
        if abs(value) > of.least[site.path][neuron]:
            names = of.subject.names(torch.tensor(of.read_by(site)[index]))
            text = "" if of.subject.shape.image else " ".join(names)
            rows.append((index, position, names[position], value, text))
    return pd.DataFrame(rows, columns=["input", "position", "token", "activation", "tokens"])


def expert_weights(reading: Reading, *, layer: int) -> pd.DataFrame:
    """One row for each position and expert: position, token, expert (from 0), weight; 0 for an expert that is not taken.

    `layer` counts the feed-forward layers from 0. Raises `EditError` where there is no such layer, `UnavailableError` where it
    has no router that was found.

    Args:
        reading: The run.
        layer: The layer, from 0.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=16, num_attention_heads=4, num_key_value_heads=2)
        >>> model = MixtralForCausalLM(MixtralConfig(vocab_size=99, num_hidden_layers=2, num_local_experts=4, **sizes))
        >>> reading = xformer.read(model, [5, 6, 7])
        >>> table = xformer.analysis.expert_weights(reading, layer=1)
        >>> list(table.columns)
        ['position', 'token', 'expert', 'weight']
    """
    site = reading.feed_forward_site(layer)
    weights = reading[f"{site.path}.experts"][0].float()  # [pos, expert]
    n, n_experts = weights.shape
    return pd.DataFrame(
        {
            "position": np.repeat(np.arange(n), n_experts),
            "token": np.repeat(np.array(reading.tokens_of(site.stack), dtype=object), n_experts),
            "expert": np.tile(np.arange(n_experts), n),
            "weight": weights.flatten().tolist(),
        }
    )
