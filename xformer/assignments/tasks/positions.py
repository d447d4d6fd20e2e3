"""Positions: sinusoidal encodings (Vaswani et al. 2017, §3.5), and rotary embeddings (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, normal, wrong


def sinusoidal_positions_of(
    n: int, d_model: int, *, order: str = "interleaved", exponent: float = 2.0, first: int = 0, base: float = 10000.0,
) -> Float[Tensor, "pos d_model"]:  # fmt: skip
    """The table of positions; the keyword arguments make it wrong."""
    position, pair = torch.arange(first, first + n).double()[:, None], torch.arange(d_model // 2).double()
    angles = position / base ** (exponent * pair / d_model)
    sin, cos = angles.sin().float(), angles.cos().float()
    if order == "every":  # the exponent of feature i is i, not that of its pair
        every = position / base ** (torch.arange(d_model).double() / d_model)
        sin, cos = every[:, 0::2].sin().float(), every[:, 1::2].cos().float()
    if order == "halves":
        return torch.cat([sin, cos], dim=-1)
    pair = {"cos_first": [cos, sin], "sin_only": [sin, sin]}.get(order, [sin, cos])
    return torch.stack(pair, dim=-1).flatten(1)


_POWER = "angle = position / 10000 ** (2 * i / d_model), for i = 0 … d_model/2 − 1"
_PLACES = "table[:, 0::2] = angles.sin(); table[:, 1::2] = angles.cos()"


def rotate_of(
    x: Float[Tensor, "... pos d_head"], positions: Int[Tensor, "pos"], base: float = 10000.0, *, pairs: str = "halves",
    exponent: float = 2.0, sign: int = 1, uses: str = "positions", fixed_base: float = 0.0, parts: str = "both",
) -> Float[Tensor, "... pos d_head"]:  # fmt: skip
    """Rotate pairs of features by their positions; the keyword arguments make it wrong."""
    half = x.shape[-1] // 2
    at = {
        "positions": lambda: positions, "order": lambda: torch.arange(len(positions)), "one_more": lambda: positions + 1,
    }[uses]().double()  # fmt: skip
    angles = sign * at[:, None] / (fixed_base or base) ** (exponent * torch.arange(half).double() / x.shape[-1])
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if pairs == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    if pairs == "mixed":
        cos, sin = (one.repeat_interleave(2, dim=-1) for one in (cos, sin))
        return x * cos + torch.cat([-b, a], dim=-1) * sin
    if pairs == "mixed_other":  # angles for halves, pairs next to each other
        cos, sin = (torch.cat([one, one], dim=-1) for one in (cos, sin))
        return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2) * sin
    if pairs == "joined":
        cos, sin = (torch.cat([one, one], dim=-1) for one in (cos, sin))
        return x * cos + torch.cat([-b, a], dim=-1) * sin
    rotated = {
        "both": lambda: [a * cos - b * sin, a * sin + b * cos],
        "no_minus": lambda: [a * cos + b * sin, a * sin + b * cos],
        "no_swap": lambda: [a * cos - a * sin, b * sin + b * cos],
        "cos_only": lambda: [a * cos, b * cos],
    }[parts]()
    return torch.cat(rotated, dim=-1)


_HALVES = "a, b = x.chunk(2, dim=-1); torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)"
_ANGLES = "angle = positions[:, None] / base ** (2 * i / d_head)"
POSITIONS = AssignmentTask(
    "positions",
    "Positions",
    [
        TaskPart(
            "sinusoidal_positions",
            sinusoidal_positions_of,
            lambda: [
                TaskCase(f"n = {n}, d_model = {d}", {"n": n, "d_model": d}) for n, d in ((7, 10), (13, 6), (1, 14), (101, 22))
            ],
            {"output": "pos d_model"},
            "Row 0 is 0, 1, 0, 1, …; the first column is sin(0), sin(1), sin(2), …",
            [
                wrong("sinusoid_exponent", _POWER, exponent=4.0),
                wrong("sinusoid_exponent", _POWER, "the wavelengths grow half as fast as 10000^(2i/d)", exponent=1.0),
                wrong("sinusoid_exponent", _POWER, "sine and cosine of a pair have different wavelengths", order="every"),
                wrong("sinusoids_not_interleaved", _PLACES, "the sines fill the first half and the cosines the second",
                      order="halves"),
                wrong("sinusoids_swapped", _PLACES, "cosines are at even features and sines at odd ones", order="cos_first"),
                wrong("sinusoids_swapped", _PLACES, "every feature is a sine", order="sin_only"),
                wrong("positions_from_one", "torch.arange(n), which starts at 0", "the first position is 1, not 0", first=1),
                *(wrong("sinusoid_base", _POWER, f"the base is {base:g}, not 10000", base=base)
                  for base in (1000.0, 100000.0)),
                wrong("sinusoid_frequency_missing", _POWER, "all pairs have the same wavelength", exponent=0.0),
                wrong("sinusoid_exponent", _POWER, "positions are multiplied by 10000^(2i/d), not divided", exponent=-2.0),
            ],
        ),
        TaskPart(
            "rotate",
            rotate_of,
            lambda: [
                TaskCase("x [2, 3, 7, 10]", {"x": normal(1, 2, 3, 7, 10), "positions": torch.arange(7)}),
                TaskCase("positions 5, 6, 7", {"x": normal(2, 2, 3, 3, 14), "positions": torch.tensor([5, 6, 7])}),
                TaskCase("positions 3, 0, 11", {"x": normal(3, 2, 3, 3, 10), "positions": torch.tensor([3, 0, 11])}),
                TaskCase("base = 500", {"x": normal(4, 3, 5, 22), "positions": torch.arange(5), "base": 500.0}),
            ],
            {"output": "batch head pos d_head"},
            "Rotations keep the length of a vector, and position 0 changes nothing.",
            [
                wrong("rotary_pairs_mixed", _HALVES, pairs="mixed"),
                wrong("rotary_pairs_mixed", _HALVES, pairs="mixed_other"),
                wrong("rotary_pairs_interleaved", _HALVES, "the pairs are features 2i and 2i + 1, not i and i + d_head/2",
                      pairs="interleaved"),
                wrong("rotary_inverse", _HALVES, "the rotation has the opposite direction", sign=-1),
                wrong("rotary_minus_missing", _HALVES, "a minus is missing, so that this is no rotation", parts="no_minus"),
                wrong("rotary_halves_not_swapped", _HALVES, "the halves are not exchanged for the sine", parts="no_swap"),
                wrong("rotary_sine_missing", _HALVES, "only the cosines are used", parts="cos_only", is_missing=True),
                wrong("rotary_positions_ignored", _ANGLES, "the positions 0, 1, 2, … are used, not the given ones",
                      uses="order"),
                wrong("positions_from_one", _ANGLES, "every position is one more than given", uses="one_more"),
                wrong("rotary_exponent", _ANGLES, "the wavelengths grow half as fast as base^(2i/d)", exponent=1.0),
                wrong("rotary_exponent", _ANGLES, "the wavelengths grow twice as fast as base^(2i/d)", exponent=4.0),
                wrong("rotary_exponent", _ANGLES, "positions are multiplied by base^(2i/d), not divided", exponent=-2.0),
                wrong("rotary_base_ignored", _ANGLES, "the base is always 10000", fixed_base=10000.0),
            ],
            styles=[{"pairs": "joined"}],
        ),
    ],
)  # fmt: skip
