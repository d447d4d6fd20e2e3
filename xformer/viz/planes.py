"""Turn attention weights into planes, a byte a cell, pooled by their maximum where there are too many cells.

A *plane* is one head: each cell q stands for (q / 253)ᵖ · peak, where the peak is that head's largest weight. With p = 1 a
weight is off by at most peak / 506; with p = 2 by at most peak / 253, and small ones beside a large one by much less. Two
values are reserved: 255 is a masked cell, 254 a cell that is not a number. The maximum of a block loses no peak.
"""

import numpy as np
from jaxtyping import Bool, Float, UInt8

from xformer.blocks import block_max, factor
from xformer.subjects.foreign.small_pattern import LEVELS, MASKED, NAN, Small


def planes_of(
    pattern: Float[np.ndarray, "head query key"],
    allowed: Bool[np.ndarray, "#head #query #key"],
    side: int,
    power: int = 1,
) -> tuple[UInt8[np.ndarray, "head row col"], Float[np.ndarray, " head"]]:
    """q = round(253 · (pattern / peak)^(1/power)) of the maximum of each block; the peak is that of the head's finite cells.

    Rows and columns are at most `side` each.
    """
    tall, wide = (factor(cells, side) for cells in pattern.shape[1:])
    # Masked cells are −inf, so that the maximum of a block is masked only if all of it is; NaN wins over any number.
    pattern = np.where(allowed, pattern, np.float32(-np.inf))  # [head, query, key]
    pattern = block_max(block_max(pattern, tall, axis=1), wide, axis=2)  # [head, row, col]
    number = np.isfinite(pattern)
    peaks = np.max(pattern, axis=(1, 2), where=number, initial=0.0)  # [head]
    share = np.where(number, pattern, 0) / np.where(peaks > 0, peaks, 1)[:, None, None]  # [head, row, col]
    planes = np.clip(np.rint(LEVELS * (np.sqrt(np.maximum(share, 0)) if power == 2 else share)), 0, LEVELS)
    return np.where(number, planes, np.where(pattern == -np.inf, MASKED, NAN)).astype(np.uint8), peaks


def exact_block(
    pattern: Float[np.ndarray, "head query key"], allowed: Bool[np.ndarray, "#head #query #key"], head: int
) -> Float[np.ndarray, "query key"]:
    """One head as float32, little endian: +inf where masked, NaN where it is not a number."""
    one = pattern[head].astype("<f4")  # [query, key]
    seen = np.broadcast_to(allowed, pattern.shape)[head]  # [query, key]
    return np.where(seen, np.where(np.isfinite(one), one, np.nan), np.inf).astype("<f4")


def moved(
    original: Float[np.ndarray, "head query key"], changed: Float[np.ndarray, "head query key"]
) -> Float[np.ndarray, " head"]:
    """How far each head moved: the total variation ½ Σ_key |p − p'|, averaged over queries; 0 the same, 1 disjoint."""
    both = np.where(np.isfinite(original) & np.isfinite(changed), np.abs(original - changed), 0)
    return 0.5 * both.sum(axis=2).mean(axis=1)


def small(
    pattern: Float[np.ndarray, "head query key"], allowed: Bool[np.ndarray, "#head #query #key"], side: int
) -> Small:
    """A layer's planes, and what they are without the first key."""
    planes, peaks = planes_of(pattern, allowed, side, 2)
    tall, wide = factor(pattern.shape[1], side), factor(pattern.shape[2], side)
    block = np.where(np.broadcast_to(allowed, pattern.shape)[:, :, 1:wide], pattern[:, :, 1:wide], np.float32(-np.inf))
    column = block_max(block.max(axis=2, initial=-np.inf), tall, axis=1)  # [head, row]
    number = np.isfinite(column)
    share = np.where(number, column, 0) / np.where(peaks > 0, peaks, 1)[:, None]
    codes = np.clip(np.rint(LEVELS * np.sqrt(np.maximum(share, 0))), 0, LEVELS)
    others = np.max(np.where(planes[:, :, 1:] <= LEVELS, planes[:, :, 1:], 0), axis=(1, 2), initial=0)  # [head]
    most = np.maximum((others / LEVELS) ** 2 * peaks, np.max(column, axis=1, where=number, initial=0.0))
    return Small(planes, peaks, np.where(number, codes, MASKED).astype(np.uint8), most)
