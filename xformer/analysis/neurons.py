"""What the neurons of a feed-forward layer do: how often they fire, what excites them, and what they say.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂        neuron n fires at a position where act(…)ₙ > 0     (Vaswani et al. 2017, §3.3)

A neuron that fires nowhere on a set of inputs is dead on that set. What it writes is its row of W₂ (Geva et al. 2021,
arXiv:2012.14913: feed-forward layers are key-value memories), which through the unembedding favours some tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer import edits
from xformer.layers.block import Block, CrossBlock
from xformer.layers.feed_forward import FeedForward
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.trace import Trace, record


def feed_forward_layers(model: Transformer) -> dict[str, FeedForward]:
    """The feed-forward layers by their paths, "encoder.0.ffn", in the order the input meets them; none where d_ff = 0."""
    found = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, block in enumerate([] if stack is None else stack.blocks):
            assert isinstance(block, Block | CrossBlock)
            if block.ffn is not None:
                found[f"{name}.{index}.ffn"] = block.ffn
    return found


@dataclass(frozen=True, eq=False)
class Survey:
    """What the neurons did over many inputs; each dict is by the path of the layer."""

    n_inputs: int
    seed: int
    n_positions: dict[str, int]
    fired: dict[str, Int[Tensor, " d_ff"]]
    """At how many positions each neuron fired."""
    peak: dict[str, Float[Tensor, "best d_ff"]]
    """The largest activations of each neuron, one an input, largest first …"""
    where: dict[str, Int[Tensor, "best d_ff 2"]]
    """… and where: (input, position)."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens that the encoder's or the only stack's layers read."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that an encoder-decoder's decoder read; else empty."""


def survey(model: Transformer, task: Task, n: int = 2000, seed: int = 0, *, best: int = 8, batch: int = 250) -> Survey:
    """Run `n` sampled inputs of the task (its "test" stream, so never trained on) and count what fires.

    The same (n, seed) gives the same inputs for whatever `batch`, which only bounds the memory.
    """
    sample = task.sample(n, seed=seed)
    pad = task.vocabulary.special.pad
    layers = feed_forward_layers(model)
    positions = dict.fromkeys(layers, 0)
    fired: dict[str, Tensor] = {}
    peak: dict[str, Tensor] = {}
    where: dict[str, Tensor] = {}
    for start in range(0, n, batch):
        rows = sample.rows(start, min(start + batch, n))
        valid = rows.tokens != pad  # [batch, pos]
        target_valid = None if rows.target is None else rows.target != pad
        trace = record(
            model, rows.tokens, rows.target, valid=valid, target_valid=target_valid, keep=[f"{p}.post" for p in layers]
        )
        for path in layers:
            real = target_valid if target_valid is not None and path.startswith("decoder") else valid
            post = trace[f"{path}.post"].masked_fill(~real[..., None], float("-inf"))  # [batch, pos, d_ff]
            positions[path] += int(real.sum())
            count = (post > 0).flatten(0, 1).sum(dim=0, dtype=torch.int32)  # [d_ff]
            top = post.max(dim=1)  # [batch, d_ff]
            values, row = top.values.topk(min(best, len(post)), dim=0)  # [best, d_ff]
            place = torch.stack((start + row, top.indices.gather(0, row)), dim=-1)  # [best, d_ff, 2]
            if path in peak:  # the best so far and those of this batch
                values, row = torch.cat((peak[path], values)).topk(min(best, len(peak[path]) + len(values)), dim=0)
                place = torch.cat((where[path], place)).gather(0, row[..., None].expand(-1, -1, 2))
            peak[path], where[path] = values, place
            fired[path] = fired[path] + count if path in fired else count
    return Survey(
        n_inputs=n,
        seed=seed,
        n_positions=positions,
        fired=fired,
        peak=peak,
        where=where,
        inputs=_sequences(sample.tokens, pad),
        targets=() if sample.target is None else _sequences(sample.target, pad),
    )


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


def fired_in(trace: Trace, path: str) -> Int[Tensor, " d_ff"]:
    """At how many positions of the trace's first input each neuron fired."""
    return (trace[f"{path}.post"][0] > 0).sum(dim=0)


def activity(fired: dict[str, Int[Tensor, " d_ff"]], n_positions: dict[str, int], over: str) -> pd.DataFrame:
    """One row a layer: how many neurons it has, how many are dead, the shares that are dead and that ever fire, and the
    share firing at an average position. `over` names what was counted over."""
    rows = []
    for path, count in fired.items():
        dead = int((count == 0).sum())
        rows.append(
            {
                "layer": path,
                "over": over,
                "neurons": len(count),
                "dead": dead,
                "share_dead": dead / len(count),
                "share_ever": 1 - dead / len(count),
                "share_at_once": count.sum().item() / (len(count) * n_positions[path]),
            }
        )
    return pd.DataFrame(rows)


def activity_of(trace: Trace, paths: Sequence[str], over: str = "this input") -> pd.DataFrame:
    """The same for the first input of a trace."""
    return activity(
        {path: fired_in(trace, path) for path in paths},
        {path: trace[f"{path}.post"].shape[1] for path in paths},
        over,
    )


@torch.no_grad()
def promoted(model: Transformer, path: str) -> Float[Tensor, "d_ff vocab"]:
    """W₂ W_U: what one unit of each neuron's activation adds to each logit on the direct path to the unembedding.

    The path is the whole truth in the last layer of a model without norms. Elsewhere it leaves out what later layers make
    of it, and that every norm in between rescales it.
    """
    unembed = model.embedding.token if model.unembedding.weight is None else model.unembedding.weight
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

    They run as one batch, with one neuron silenced in each row.
    """
    post = trace[f"{path}.post"][:1].expand(len(neurons), -1, -1).clone()  # [neuron, pos, d_ff]
    post[torch.arange(len(neurons)), :, list(neurons)] = 0.0
    tokens = trace.tokens[:1].expand(len(neurons), -1)
    target = None if trace.target is None else trace.target[:1].expand(len(neurons), -1)
    changes = [*trace.edits, edits.replace(f"{path}.post", post)]
    return record(model, tokens, target, edits=changes, keep=["logits"]).logits


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
    """The `n` most active neurons at a position, one a row: neuron, activation, promotes, suppresses (None where the layer
    does not speak directly), and the effects of silencing it, measured by running the model: loss_change, in nats, over the
    labelled outputs, and flips, how many of their likeliest tokens change."""
    neurons = top_neurons(trace, path, position, n)
    labelled: Bool[Tensor, " out"] = answers >= 0
    right = answers[labelled]

    def loss(logits: Float[Tensor, "*batch out vocab"]) -> Tensor:
        log_p = logits[..., labelled, :].log_softmax(dim=-1)  # [*batch, right, vocab]
        return -log_p[..., torch.arange(len(right)), right].mean(dim=-1)

    logits = silenced_one_by_one(model, trace, path, neurons)
    change = loss(logits) - loss(trace.logits[0])  # [neuron]
    moved = logits[:, labelled].argmax(dim=-1) != trace.logits[0, labelled].argmax(dim=-1)  # [neuron, right]
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
