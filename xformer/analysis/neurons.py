"""What single neurons of a feed-forward layer say, and what is lost without them.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂                                               (Vaswani et al. 2017, §3.3)

What neuron n writes is its row of W₂ (Geva et al. 2021, arXiv:2012.14913: feed-forward layers are key-value memories),
which through the unembedding favours some tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer import edits
from xformer.analysis.survey import feed_forward_layers
from xformer.model import Transformer
from xformer.trace import Trace, repeat_first


@torch.no_grad()
def promoted(model: Transformer, path: str) -> Float[Tensor, "d_ff vocab"]:
    """W₂ W_U: what one unit of each neuron's activation adds to each logit on the direct path to the unembedding.

    The path is the whole truth in the last layer of a model without norms. Elsewhere it leaves out what later layers make
    of it, and that every norm in between rescales it.
    """
    unembed = model.unembedding.matrix(model.embedding)
    return feed_forward_layers(model)[path].weight_out.T @ unembed.T


def speaks_directly(model: Transformer, path: str) -> bool:
    """Whether the layer stands on the stream that is unembedded: an encoder-decoder's encoder does not."""
    return not (model.config.architecture == "encoder-decoder" and path.startswith("encoder"))


def top_neurons(trace: Trace, path: str, position: int, n: int = 10) -> list[int]:
    """The `n` most active neurons at a position of the trace's first input, the most active first."""
    post = trace[f"{path}.post"][0, position]  # [d_ff]
    return post.topk(min(n, len(post))).indices.tolist()


def silenced_one_by_one(
    model: Transformer, trace: Trace, path: str, neurons: Sequence[int]
) -> Float[Tensor, "neuron pos vocab"]:
    """The logits of the trace's first input when one of `neurons` is silenced, for each of them; the trace's edits stay on.

    They run as one batch, with one neuron silenced in each row, under the padding and the mask of the trace.
    """
    return _with_and_without(model, trace, path, neurons)[1:]


def _with_and_without(
    model: Transformer, trace: Trace, path: str, neurons: Sequence[int]
) -> Float[Tensor, "neuron+1 pos vocab"]:
    """The logits of the trace's first input as it ran, and then with each of `neurons` silenced: one batch, one rounding."""
    post = trace[f"{path}.post"][:1].expand(len(neurons) + 1, -1, -1).clone()  # [neuron+1, pos, d_ff]
    post[torch.arange(1, len(neurons) + 1), :, list(neurons)] = 0.0
    silenced = edits.replace(f"{path}.post", post)
    return repeat_first(model, trace, len(post), edits=[silenced], keep=["logits"], fused=True).logits


def neuron_table(
    model: Transformer,
    trace: Trace,
    path: str,
    position: int,
    labels: Sequence[str],
    answers: Int[Tensor, " out"],
    n: int = 10,
    favourites: int = 3,
) -> pd.DataFrame:
    """The `n` most active neurons at a position, one per row: neuron, activation, promotes, suppresses (None where the layer
    does not speak directly), and the effects of silencing it, measured by running the model: loss_change, in nats, over the
    labelled outputs, and flips, how many of their likeliest tokens change."""
    neurons = top_neurons(trace, path, position, n)
    labelled: Bool[Tensor, " out"] = answers >= 0
    right = answers[labelled]

    def loss(logits: Float[Tensor, "*batch out vocab"]) -> Tensor:
        log_p = logits[..., labelled, :].log_softmax(dim=-1)  # [*batch, right, vocab]
        return -log_p[..., torch.arange(len(right)), right].mean(dim=-1)

    logits = _with_and_without(model, trace, path, neurons)
    change = loss(logits[1:]) - loss(logits[0])  # [neuron]
    moved = logits[1:, labelled].argmax(dim=-1) != logits[0, labelled].argmax(dim=-1)  # [neuron, right]
    effect = promoted(model, path) if speaks_directly(model, path) else None
    rows = []
    for index, neuron in enumerate(neurons):
        row: dict[str, object] = {
            "neuron": neuron,
            "activation": trace[f"{path}.post"][0, position, neuron].item(),
            "promotes": None,
            "suppresses": None,
        }
        if effect is not None:
            order: list[int] = effect[neuron].argsort(descending=True).tolist()
            row["promotes"] = " ".join(labels[token] for token in order[:favourites])
            row["suppresses"] = " ".join(labels[token] for token in reversed(order[-favourites:]))
        rows.append(row | {"loss_change": change[index].item(), "flips": int(moved[index].sum())})
    return pd.DataFrame(rows)
