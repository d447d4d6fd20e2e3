"""Where the sequences of a batch stand: which cells hold tokens, which of them belong together, and each one's position.

A batch is a rectangle [batch, pos]; its sequences are not. Either short ones are padded, or several are packed into one
row. Both are the same statement, a segment number for every cell: 0 is padding, equal numbers form one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The sequences of one batch. Without `segments`, every row is one sequence without padding."""

    positions: Int[Tensor, "*batch pos"]
    """Each token's index within its own sequence, from 0; [pos] where all rows agree."""
    mirrored: Int[Tensor, "*batch pos"]
    """The same counted from the other end: length - 1 - index."""
    segments: Int[Tensor, "batch pos"] | None = None
    padded: bool = False
    """Whether a cell may be padding (a promise made by whoever built it, so that nobody has to look)."""

    @classmethod
    def plain(cls, n_pos: int, device: torch.device | str = "cpu", start: int = 0) -> Layout:
        """Rows that are one sequence each, all of the same length; `start` is the position of the first cell."""
        index = torch.arange(start, start + n_pos, device=device)  # [pos]
        return cls(positions=index, mirrored=index.flip(0))

    @classmethod
    def from_valid(cls, valid: Bool[Tensor, "batch pos"]) -> Layout:
        """Rows that are one sequence each, with padding wherever `valid` is false (on either side)."""
        return cls.from_segments(valid.long(), padded=True)

    @classmethod
    def from_segments(cls, segments: Int[Tensor, "batch pos"], *, padded: bool = True) -> Layout:
        """Rows that hold several sequences, each a run of equal numbers above 0; 0 is padding."""
        n_pos = segments.shape[-1]
        index = torch.arange(n_pos, device=segments.device).expand_as(segments)  # [batch, pos]
        same = segments[:, :, None] == segments[:, None, :]  # [batch, query, key]
        first = torch.where(same, index[:, None, :], n_pos).amin(dim=-1)  # [batch, pos]
        last = torch.where(same, index[:, None, :], -1).amax(dim=-1)  # [batch, pos]
        token = segments > 0
        zero = torch.zeros_like(index)
        return cls(
            positions=torch.where(token, index - first, zero),
            mirrored=torch.where(token, last - index, zero),
            segments=segments,
            padded=padded,
        )
