"""How a transformer knows where a token stands: six ways, each its equation.

Added to the embeddings:   sinusoidal (Vaswani et al. 2017, §3.5) · learned (ibid.) · mirror (learned, from both ends)
Inside the attention:      rotary (Su et al. 2021, arXiv:2104.09864, §3.4) · ALiBi (Press et al. 2022, arXiv:2108.12409, §3)
And none: then an encoder sees a set, not a sequence.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.layout import Layout


def sinusoidal(n_pos: int, d_model: int, base: float = 10_000.0) -> Float[Tensor, "pos d_model"]:
    """PE(pos, 2i) = sin(pos / base^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / base^(2i/d_model))."""
    position = torch.arange(n_pos, dtype=torch.float64)[:, None]  # [pos, 1]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)  # [⌈d_model/2⌉]: 2i
    angle = position / base ** (pair / d_model)  # [pos, ⌈d_model/2⌉]
    table = torch.empty(n_pos, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]  # an odd d_model ends on a sine
    return table.to(torch.get_default_dtype())


class SinusoidalPositions(nn.Module):
    """Adds fixed waves of geometrically growing length. Nothing is learned, so nothing is saved."""

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        table = sinusoidal(config.max_len, config.d_model, config.position_base)
        self.register_buffer("table", table, persistent=False)

    def forward(self, layout: Layout) -> Float[Tensor, "*batch pos d_model"]:
        return self.table[layout.positions]


class LearnedPositions(nn.Module):
    """Adds a learned vector for each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.max_len, config.d_model))

    def forward(self, layout: Layout) -> Float[Tensor, "*batch pos d_model"]:
        return nn.functional.embedding(layout.positions, self.table)


class MirrorPositions(nn.Module):
    """Adds two learned vectors, one for the distance from the start and one for the distance from the end.

    With both, one layer is enough to reverse: position i looks for the token whose distance from the end is i.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.from_start = nn.Parameter(torch.empty(config.max_len, config.d_model))
        self.from_end = nn.Parameter(torch.empty(config.max_len, config.d_model))

    def forward(self, layout: Layout) -> Float[Tensor, "*batch pos d_model"]:
        start = nn.functional.embedding(layout.positions, self.from_start)  # [*batch, pos, d_model]
        return start + nn.functional.embedding(layout.mirrored, self.from_end)


ADDED_POSITIONS = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions, "mirror": MirrorPositions}


def rotary_angles(
    positions: Int[Tensor, "*batch pos"], d_head: int, base: float = 10_000.0
) -> Float[Tensor, "*batch pos half"]:
    """θ(pos, i) = pos / base^(2i/d_head): by how much the i-th pair of dimensions is turned at a position."""
    pair = torch.arange(0, d_head, 2, device=positions.device, dtype=torch.float64)  # [half]: 2i
    angles = positions[..., None] / base ** (pair / d_head)  # [*batch, pos, half]
    return angles.to(torch.get_default_dtype())


def rotate(
    x: Float[Tensor, "batch head pos d_head"], angles: Float[Tensor, "*batch pos half"]
) -> Float[Tensor, "batch head pos d_head"]:
    """Turn each pair (x₂ᵢ, x₂ᵢ₊₁) by θᵢ, so that a score q·k depends on the offset of the two positions only."""
    if angles.dim() == 3:
        angles = angles[:, None]  # [batch, 1, pos, half]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # [batch, head, pos, half]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """One slope a head: 2^(−8/n), 2^(−16/n), …; when n is not a power of two, every other slope of twice the next
    smaller power fills the gap, as in the authors' code."""
    power = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor(slopes + between[: n_heads - power])


def alibi_bias(
    queries: Int[Tensor, "*batch query"], keys: Int[Tensor, "*batch key"], n_heads: int
) -> Float[Tensor, "#batch head query key"]:
    """−slope · |distance|, added to the scores: far keys cost more. (The paper is causal; an encoder looks both ways.)"""
    distance = (queries[..., :, None] - keys[..., None, :]).abs()  # [*batch, query, key]
    slopes = alibi_slopes(n_heads).to(distance.device)  # [head]
    bias = -slopes[:, None, None] * distance[..., None, :, :]  # [*batch, head, query, key]
    return bias if bias.dim() == 4 else bias[None]
