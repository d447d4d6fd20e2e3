"""Makes a pattern small enough for a screen: neighbouring keys are added up, neighbouring queries averaged.

    coarse[I, J] = mean over queries i of block I of  Σ over keys j of block J  pattern[i, j]

Rows still sum to 1, so that a colour means the same in the small picture as in the large one.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def blocks(n: int, most: int | None) -> list[tuple[int, int]]:
    """The first and last position of at most `most` blocks of one size that hold n positions (the last may be smaller)."""
    size = 1 if most is None else -(-n // most)
    return [(first, min(first + size, n) - 1) for first in range(0, n, size)]


def pooled(pattern: Float[Tensor, "*rest query key"], most: int | None) -> Float[Tensor, "*rest query_block key_block"]:
    """A pattern of at most `most` × `most` blocks; itself where it has no more."""
    return _means(_sums(pattern, most), most)


def pooled_keys(rows: Float[Tensor, "*rest key"], most: int | None) -> Float[Tensor, "*rest key_block"]:
    """The same of single rows: the keys alone."""
    return _sums(rows, most)


def any_allowed(mask: Bool[Tensor, "*rest key"], most: int | None) -> Bool[Tensor, "*rest key_block"]:
    """Which blocks of keys some key may be looked at of."""
    return _sums(mask.double(), most) > 0


def any_allowed_cells(
    mask: Bool[Tensor, "*rest query key"], most: int | None
) -> Bool[Tensor, "*rest query_block key_block"]:
    """The same of whole patterns: which blocks have a cell that may be looked at."""
    return pooled(mask.double(), most) > 0


def _sums(values: Tensor, most: int | None) -> Tensor:
    found = blocks(values.shape[-1], most)
    if len(found) == values.shape[-1]:
        return values
    return torch.stack([values[..., first : last + 1].sum(dim=-1) for first, last in found], dim=-1)


def _means(values: Tensor, most: int | None) -> Tensor:
    found = blocks(values.shape[-2], most)
    if len(found) == values.shape[-2]:
        return values
    return torch.stack([values[..., first : last + 1, :].mean(dim=-2) for first, last in found], dim=-2)
