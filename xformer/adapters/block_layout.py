"""What adds to the stream within one block of an unknown model, found by the sums that come out.

    pre-norm    mid = x + A            y = mid + F                 A: what attention adds, F: what the neurons add
                                                                   (some families add a constant share of it)
    post-norm   mid = norm(x + A)      y = norm(mid + F)
    parallel    y = x + A + F                                      (Wang & Komatsuzaki 2021)

A and F are outputs of parts of the block. That x + A is what a later part reads, or what the block returns, tells which ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xformer.adapters.probe import Attention, Call, Probe

ROUNDINGS = 16
"""How far a sum may be from what it is held against: that many roundings of its largest number, and no more."""
SAME_SHARE = 0.99
"""In half precision sixteen roundings of a large number hide whole layers: there so many numbers are the same within one."""


@dataclass(frozen=True)
class Sublayer:
    """What one attention, or the neurons, add, and where the stream stands after it."""

    adds: Call
    mid: Call | None
    """The norm whose output is the stream after it, where a norm stands between; None: the stream is the sum itself."""
    factor: float = 1.0
    """What the part's output is multiplied with before it is added."""


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
    later = [call for call in parts if call.begin > max([after, *ends[:1]])]
    for adds in reversed(later):
        if len(ends) > 1 and adds.end > ends[1]:
            continue
        following = [call for call in later if call.begin > adds.end]
        is_last = len(ends) <= 1
        if is_last and not (ends and any(call.is_leaf and call.has_weights for call in following)):
            factor = _factor(x, adds, y)
            if factor is not None:
                return [Sublayer(adds, None, factor)]
        for reads in following:
            if reads.taken is None or reads.given is None or reads.taken.numel() != x.numel():
                continue
            factor = _factor(x, adds, reads.taken.reshape(x.shape))
            if factor is None:
                continue
            given = reads.given.reshape(x.shape)
            is_end = not any(call.is_leaf and call.has_weights and call.begin > reads.begin for call in parts)
            if is_last and reads.is_norm and is_end and _close(given, y):
                return [Sublayer(adds, reads, factor)]
            if ends:
                bases = [(x + factor * _as(adds, x), None), *([(given, reads)] if reads.is_norm else [])]
                for base, mid in bases:
                    rest = _walk(parts, base, y, ends[1:], reads.begin - 1 if mid is None else reads.end)
                    if rest is not None:
                        return [Sublayer(adds, mid, factor), *rest]
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


def _factor(x: Tensor, adds: Call, total: Tensor) -> float | None:
    """The constant c with x + c · adds = total; None where there is none."""
    part = _as(adds, x)
    if _close(x + part, total):
        return 1.0
    length = float((part * part).sum())
    factor = float(((total - x) * part).sum()) / length if length > 0 else 0.0
    return factor if factor > 0 and _close(x + factor * part, total) and not _close(x, total) else None


def _as(call: Call, x: Tensor) -> Tensor:
    assert call.given is not None
    return call.given.reshape(x.shape)


def _close(one: Tensor, other: Tensor) -> bool:
    if not bool(torch.isfinite(one).all()):
        return False
    eps, apart = torch.finfo(other.dtype).eps, (one - other).abs()
    if other.dtype in (torch.bfloat16, torch.float16):
        same = apart <= eps * torch.maximum(one.abs(), other.abs())
        return float(same.float().mean()) >= SAME_SHARE
    return float(apart.max()) <= ROUNDINGS * eps * max(float(other.abs().max()), float(one.abs().max()))
