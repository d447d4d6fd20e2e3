"""How often the neurons of a feed-forward layer fire, and on what: counted over many inputs, or in one run.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂        neuron n fires at a position where act(…)ₙ > 0     (Vaswani et al. 2017, §3.3)

A neuron that fires nowhere on a set of inputs is dead on that set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.layers.block import Block, CrossBlock
from xformer.layers.feed_forward import FeedForward
from xformer.model import Transformer
from xformer.site import Site
from xformer.tasks import Task
from xformer.trace import Trace, record

MOST_TOKENS = 4096
"""Of a batch: so that a step takes a moment and little memory."""


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
    """What the neurons did over many inputs, or over those that were run so far; each dict is by the path of the layer."""

    n_inputs: int
    """How many inputs were run …"""
    n_asked: int
    """… of so many that were sampled."""
    seed: int
    n_positions: dict[str, int]
    fired: dict[str, Int[Tensor, " d_ff"]]
    """At how many positions each neuron fired."""
    peak: dict[str, Float[Tensor, "best d_ff"]]
    """The largest activations of each neuron, one per input, largest first …"""
    where: dict[str, Int[Tensor, "best d_ff 2"]]
    """… and where: (input, position)."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens that the encoder's or the only stack's layers read."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that an encoder-decoder's decoder read; else empty."""


def fitting(model: Transformer, task: Task, work: float = 2e11, most: int = 2000) -> int:
    """How many inputs of the task a survey may run for so much `work`, in floating-point operations; at least 16."""
    config, longest = model.config, max(task.longest)
    token = 2 * sum(parameter.numel() for parameter in model.parameters())
    token += 4 * longest * config.n_layers * config.n_heads * config.d_head
    return max(16, min(most, int(work / (token * longest))))


def survey(
    model: Transformer, task: Task, n: int = 2000, seed: int = 0, *, best: int = 8, first: int | None = None
) -> Survey:
    """Run `n` sampled inputs of the task (its "test" stream, so never trained on) and count what fires.

    The same (n, seed) gives the same inputs. `first` runs only so many of them.
    """
    *_, found = surveying(model, task, n, seed, best=best, first=first)
    return found


def surveying(
    model: Transformer,
    task: Task,
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
    n = min(n, task.rule.unseen or n)
    sample = task.sample(n, seed=seed)
    n = n if first is None else min(n, first)
    batch = max(1, min(250, MOST_TOKENS // max(task.longest))) if batch is None else batch
    pad = task.vocabulary.special.pad
    inputs = _sequences(sample.tokens, -1 if task.rule.is_image else pad)
    targets = () if sample.target is None else _sequences(sample.target, pad)
    layers = feed_forward_layers(model)
    positions = dict.fromkeys(layers, 0)
    fired: dict[str, Tensor] = {}
    peak: dict[str, Tensor] = {}
    where: dict[str, Tensor] = {}
    for start in range(0, n, batch):
        end = min(start + batch, n)
        rows = sample.rows(start, end)
        valid = rows.valid  # [batch, pos], or None: no padding
        target_valid = None if rows.target is None else rows.target != pad
        keep = [f"{path}.post" for path in layers]
        trace = record(model, rows.tokens, rows.target, valid=valid, target_valid=target_valid, keep=keep, fused=True)
        for path in layers:
            real = target_valid if target_valid is not None and Site.parse(path).stack == "decoder" else valid
            post = trace[f"{path}.post"]  # [batch, pos, d_ff]
            if real is None:
                real = post.new_ones(post.shape[:2], dtype=torch.bool)
            post = post.masked_fill(~real[..., None], float("-inf"))
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
        yield Survey(end, n, seed, dict(positions), dict(fired), dict(peak), dict(where), inputs, targets)


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


def fired_in(trace: Trace, path: str) -> Int[Tensor, " d_ff"]:
    """At how many positions of the trace's first input, padding left out, each neuron fired."""
    return (real_rows(trace, path) > 0).sum(dim=0)


def real_rows(trace: Trace, path: str) -> Float[Tensor, "pos d_ff"]:
    """The activations of the trace's first input at the positions that are no padding."""
    post, real = trace[f"{path}.post"][0], trace.real(path.partition(".")[0])
    return post if real is None else post[real]


def activity(fired: dict[str, Int[Tensor, " d_ff"]], n_positions: dict[str, int], over: str) -> pd.DataFrame:
    """One row per layer: how many neurons it has, how many are dead, the shares that are dead and that ever fire, and the
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
        {path: len(real_rows(trace, path)) for path in paths},
        over,
    )
