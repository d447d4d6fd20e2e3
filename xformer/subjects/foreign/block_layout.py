"""What adds to the stream within one block of an unknown model, found by the sums that come out.

    pre-norm    mid = x + A            y = mid + F                 A: what attention adds, F: what the neurons add
    post-norm   mid = norm(x + A)      y = norm(mid + F)
    parallel    y = x + A + F                                      (Wang & Komatsuzaki 2021)

A and F are outputs of parts of the block. That x + A is what a later part reads, or what the block returns, tells which ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xformer.subjects.foreign.probe import Attention, Call, Probe

ROUNDINGS = 16
"""How far a sum may be from what it is held against: that many roundings of its largest number, and no more."""


@dataclass(frozen=True)
class Sublayer:
    """What one attention, or the neurons, add, and where the stream stands after it."""

    adds: Call
    mid: Call | None
    """The norm whose output is the stream after it, where a norm stands between; None: the stream is the sum itself."""


@dataclass(frozen=True)
class BlockLayout:
    """A block taken apart. `attention[i]` belongs to its i-th attention."""

    attention: tuple[Sublayer, ...]
    feed_forward: Sublayer | None
    is_parallel: bool = False


def block_layout(seen: Probe, index: int, attentions: list[Attention]) -> BlockLayout | None:
    """How call `index`, a block with these attentions, is made up; None where no sums explain it."""
    block = seen.calls[index]
    x, y = block.taken, block.given
    if x is None or y is None or x.shape != y.shape:
        return None
    parts = [call for call in seen.inside(index) if call.given is not None and call.given.numel() == x.numel()]
    return _serial(parts, x, y, attentions) or _parallel(parts, x, y, attentions)


def _serial(parts: list[Call], x: Tensor, y: Tensor, attentions: list[Attention]) -> BlockLayout | None:
    found = _walk(parts, x, y, [attention.end for attention in attentions], 0)
    if found is None:
        return None
    n = len(attentions)
    return BlockLayout(tuple(found[:n]), found[n] if len(found) > n else None)


def _walk(parts: list[Call], x: Tensor, y: Tensor, ends: list[int], after: int) -> list[Sublayer] | None:
    """The sublayers that lead from x to y, one for each attention and one for the neurons; the latest parts first."""
    start = max(after, ends[0]) if ends else after
    later = [call for call in parts if call.begin > start]
    stop = ends[1] if len(ends) > 1 else None
    for adds in reversed(later):
        if stop is not None and adds.end > stop:
            continue
        total = _sum(x, adds)
        if len(ends) <= 1 and _close(total, y):  # the block ends here
            if ends and any(call.begin > adds.end and _reads_stream(call) for call in later):
                continue
            return [Sublayer(adds, None)]
        for norm in (call for call in later if call.begin > adds.end and call.taken is not None):
            assert norm.taken is not None
            if norm.taken.numel() != total.numel() or not _close(norm.taken.reshape(total.shape), total):
                continue
            assert norm.given is not None
            after_norm = norm.given.reshape(total.shape)
            if len(ends) <= 1 and _close(after_norm, y) and norm.end >= max(call.end for call in parts):
                return [Sublayer(adds, norm)]
            if not ends:
                continue
            for base, mid in ((total, None), (after_norm, norm)):
                rest = _walk(parts, base, y, ends[1:], norm.begin - 1 if mid is None else norm.end)
                if rest is not None:
                    return [Sublayer(adds, mid), *rest]
            break
    return None


def _parallel(parts: list[Call], x: Tensor, y: Tensor, attentions: list[Attention]) -> BlockLayout | None:
    if len(attentions) != 1:
        return None
    begin, end = attentions[0].begin, attentions[0].end
    attending = [call for call in parts if call.begin < begin and call.end > end]
    others = [call for call in parts if call not in attending]
    for adds in attending or [call for call in parts if call.begin > end]:
        for neurons in reversed(others):
            if _close(x + _as(adds, x) + _as(neurons, x), y):
                return BlockLayout((Sublayer(adds, None),), Sublayer(neurons, None), is_parallel=True)
    return None


def _reads_stream(call: Call) -> bool:
    return call.is_leaf and next(call.module.parameters(recurse=False), None) is not None


def _sum(x: Tensor, adds: Call) -> Tensor:
    return x + _as(adds, x)


def _as(call: Call, x: Tensor) -> Tensor:
    assert call.given is not None
    return call.given.reshape(x.shape)


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(other.abs().max())
    limit = ROUNDINGS * torch.finfo(other.dtype).eps * max(largest, float(one.abs().max()))
    return bool(torch.isfinite(one).all()) and float((one - other).abs().max()) <= limit
