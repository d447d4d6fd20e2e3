"""Rotary positions: pairs of dimensions of queries and keys are rotated by position (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.errors import ConfigError
from xformer.positions.kind import PositionKind, PositionSizes

if TYPE_CHECKING:
    from torch import Tensor

    from xformer.positions.kind import Angles, HeadVectors, Positions


def rotary_angles(positions: Positions, d_head: int, base: float = 10_000.0) -> Angles:
    """Return θ(pos, i) = pos / base^(2i/d_head), the angle of the i-th pair of dimensions at a position."""
    import torch

    return _angles(positions, d_head, base).to(torch.get_default_dtype())


def _angles(positions: Tensor, d_head: int, base: float) -> Angles:
    import torch

    pair = torch.arange(0, d_head, 2, device=positions.device, dtype=torch.float64)  # [half]: 2i
    return positions[..., None] / base ** (pair / d_head)  # [*batch, pos, half]


def rotate(x: HeadVectors, angles: Angles) -> HeadVectors:
    """Rotate each pair (x₂ᵢ, x₂ᵢ₊₁) by θᵢ, so that a score q·k depends only on the offset of the two positions (§3.4)."""
    import torch

    if angles.dim() == 3:
        angles = angles[:, None]  # [batch, 1, pos, half]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # [batch, head, pos, half]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Rotary(PositionKind):
    """R_i q · R_j k: nothing is added or learned."""

    name = "rotary"
    title = "Rotary"
    summary = "Rotates queries and keys, pair by pair, by angles that grow with the position."
    note = "The score of a given query and key then depends only on their offset."
    source = "Su et al. 2021, §3.4"
    acts_on = "queries and keys"
    detail = "rotary, fixed"
    equation = "rotate q, k by pos·θᵢ"
    alternative = "rotary positions rotate queries and keys instead"

    def angles(self, sizes: PositionSizes, index: Positions) -> Angles:
        return _angles(index, sizes.d_head, sizes.position_base)

    def rotate(self, x: HeadVectors, angles: Angles) -> HeadVectors:
        return rotate(x, angles)

    def check(self, sizes: PositionSizes) -> None:
        if sizes.d_head % 2:
            raise ConfigError(
                f"Rotary positions rotate pairs of dimensions, so d_head must be even, got {sizes.d_head}; "
                f"for example d_head={sizes.d_head + 1}."
            )

    def offset_caption(self, sizes: PositionSizes) -> str:
        return (
            "The score of a vector with itself, rotated to two positions: it depends only on their offset. "
            "(Su et al. 2021, §3.4)"
        )

    def wave_width(self, sizes: PositionSizes) -> int:
        return sizes.d_head
