"""What is kept of a layer's patterns in a large run: small pictures, a byte a cell, made while the patterns are at hand.

A cell q of a *plane* stands for (q / 253)² · peak, where the peak is that head's largest weight; 255 is a masked cell, 254 one
that is not a number. Where there are too many cells the largest of a block stands for all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LEVELS, NAN, MASKED = 253, 254, 255


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """What a small picture of each head of a layer shows."""

    planes: UInt8[np.ndarray, "head row col"]
    peaks: Float[np.ndarray, " head"]
    rest: UInt8[np.ndarray, "head row"]
    """The first column of the planes without the first key."""
    rest_peaks: Float[np.ndarray, " head"]
    """The largest weight on any other key."""

    @property
    def weights(self) -> Float[np.ndarray, "head row col"]:
        """The weights that the planes stand for; 0 where a cell is masked or not a number."""
        share = np.where(self.planes <= LEVELS, self.planes, 0).astype(np.float32) / LEVELS
        return share**2 * self.peaks[:, None, None].astype(np.float32)


@dataclass(frozen=True, eq=False)
class Reduced:
    """The same with what else a picture of all heads says of a layer: small enough to be kept of every layer."""

    shape: tuple[int, ...]
    """[head, query, key] of its pattern."""
    small: Thumbnail
    z_size: tuple[float, ...]
    silenced: tuple[int, ...]
    is_masked: bool


def plane_side(n_heads: int, budget: int = 600_000) -> int:
    """The most cells a side for the planes of so many heads to take `budget` bytes; from 32 to 64."""
    return max(32, min(64, int(math.sqrt(budget / max(1, n_heads)))))


def reduced(path: str, seen: dict[str, Tensor], most: int) -> Reduced:
    """The mask, pattern and z of one layer as planes of `most` cells a side at most."""
    pattern, mask = seen["pattern"][0], seen["mask"][0]  # [head, query, key]
    mask = mask[:1] if mask.stride(0) == 0 else mask
    tall, wide = (-(-cells // most) for cells in pattern.shape[1:])
    high = _largest(_largest(pattern, tall, -2), wide, -1).float()  # [head, row, col]
    allowed = _largest(_largest(mask.byte(), tall, -2), wide, -1).bool()
    beside = pattern.new_zeros(*pattern.shape[:2], 1) if wide == 1 else pattern[:, :, 1:wide]
    column = _largest(beside.amax(dim=-1), tall, -1).float()  # [head, row]
    column_allowed = torch.zeros(1, 1, dtype=torch.bool)
    if wide > 1:
        column_allowed = _largest(mask[:, :, 1:wide].any(dim=-1).byte(), tall, -1).bool()
    peaks = torch.where(allowed & high.isfinite(), high, 0.0).amax(dim=(1, 2))  # [head]
    others = torch.where((allowed & high.isfinite())[:, :, 1:], high[:, :, 1:], 0.0)
    rest = torch.where(column_allowed & column.isfinite(), column, 0.0).amax(dim=1)
    if others.shape[2]:
        rest = torch.maximum(rest, others.amax(dim=(1, 2)))
    size = seen["z"][0].float().norm(dim=-1).mean(dim=-1).tolist()
    return Reduced(
        tuple(pattern.shape),
        Thumbnail(
            _codes(high, allowed, peaks[:, None, None]),
            peaks.numpy(force=True),
            _codes(column, column_allowed, peaks[:, None]),
            rest.numpy(force=True),
        ),
        tuple(size),
        tuple(head for head, one in enumerate(size) if one == 0 and peaks[head] > 0),
        not bool(mask.all()),
    )


def _codes(weights: Tensor, allowed: Tensor, peaks: Tensor) -> UInt8[np.ndarray, "..."]:
    share = weights.nan_to_num(0.0, 0.0, 0.0).clamp(min=0) / torch.where(peaks > 0, peaks, 1.0)
    codes = (LEVELS * share.sqrt()).round().clamp(0, LEVELS)
    codes = torch.where(weights.isfinite(), codes, float(NAN))
    return torch.where(allowed, codes, float(MASKED)).to(torch.uint8).numpy(force=True)


def _largest(x: Tensor, size: int, dim: int) -> Tensor:
    """The largest of every `size` neighbours along a dimension; the last block may be smaller."""
    if size == 1:
        return x
    whole = x.shape[dim] // size * size
    parts = [x.narrow(dim, 0, whole).unflatten(dim, (-1, size)).amax(dim=dim)] if whole else []
    if whole < x.shape[dim]:
        parts.append(x.narrow(dim, whole, x.shape[dim] - whole).amax(dim=dim, keepdim=True))
    return torch.cat(parts, dim=dim)
