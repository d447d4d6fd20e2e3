"""Pool positions: blocks of neighbours in patterns that are too large to draw, and all positions of a text.

max_pool(weights, 48)                      the largest weight of each block
pool_pattern(pattern, 48)                  keys are summed and queries averaged, so that each row still sums to 1
pool_positions(states, valid, "mean")      one vector for each text

torch is imported where tensors are pooled, so that a notebook can show the runs of a store without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "last", "first"]


def block_size(n: int, most: int) -> int:
    """Return the block size that reduces n positions to at most `most`."""
    return -(-n // most)


def blocks(n: int, most: int | None) -> list[tuple[int, int]]:
    """Divide n positions into at most `most` blocks of equal size (the last may be smaller): (first, last) of each."""
    size = 1 if most is None else block_size(n, most)
    return [(first, min(first + size, n) - 1) for first in range(0, n, size)]


def block_names(texts: Sequence[str], most: int | None) -> list[str]:
    """Return the text of each of the `blocks`: that of a single position, or of both ends."""
    ends = blocks(len(texts), most)
    return [texts[first] if first == last else f"{texts[first]} … {texts[last]}" for first, last in ends]


def block_max(array: Float[np.ndarray, "..."], size: int, axis: int) -> Float[np.ndarray, "..."]:
    """Return the maximum of every block of `size` neighbours along an axis; the last block may be smaller."""
    source = np.moveaxis(array, axis, 0)
    largest = source[::size].copy()
    for start in range(1, size):  # a slice at a time: six times as fast as np.maximum.reduceat
        part = source[start::size]
        np.maximum(largest[: len(part)], part, out=largest[: len(part)])
    return np.moveaxis(largest, 0, axis)


def max_pool(maps: Float[np.ndarray, "*rest row column"], most: int) -> Float[np.ndarray, "*rest row column"]:
    """Return the maximum of every block of maps with at most `most` rows and columns; NaN propagates."""
    for axis in (-2, -1):
        maps = block_max(maps, block_size(maps.shape[axis], most), axis)
    return maps


def max_pool_masked(maps: Float[np.ndarray, "*rest row column"], most: int) -> Float[np.ndarray, "*rest row column"]:
    """Max-pool maps that are NaN where masked; a block is NaN only if all of it is."""
    maps = max_pool(np.where(np.isnan(maps), -np.inf, maps), most)
    return np.where(np.isneginf(maps), np.nan, maps)


def pool_pattern(
    pattern: Float[Tensor, "*rest query key"], most: int | None
) -> Float[Tensor, "*rest query_block key_block"]:
    """Pool a pattern to at most `most` × `most` blocks: keys are summed and queries averaged."""
    return _pooled(pool_keys(pattern, most), most, -2, "mean")


def pool_keys(rows: Float[Tensor, "*rest key"], most: int | None) -> Float[Tensor, "*rest key_block"]:
    """Sum the keys of rows in at most `most` blocks."""
    return _pooled(rows, most, -1, "sum")


def _pooled(values: Tensor, most: int | None, dim: int, reduce: Literal["sum", "mean"]) -> Tensor:
    import torch

    size = 1 if most is None else block_size(values.shape[dim], most)
    if size <= 1:
        return values
    return torch.stack([getattr(block, reduce)(dim=dim) for block in values.split(size, dim)], dim=dim)


def pool_positions(
    states: Float[Tensor, "text pos d_model"], valid: Bool[Tensor, "text pos"], pooling: Pooling
) -> Float[Tensor, "text d_model"]:
    """Pool the states of each text to one vector; positions that are not `valid` are padding."""
    import torch

    if pooling == "mean":
        weight = valid[..., None].to(states.dtype)  # [text, pos, 1]
        return (states * weight).sum(dim=1) / weight.sum(dim=1)
    at = torch.arange(valid.shape[1], device=valid.device)  # [pos]
    chosen = (valid * at).argmax(dim=1) if pooling == "last" else valid.int().argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), chosen]
