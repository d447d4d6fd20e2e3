"""How far two ways of computing one thing may lie apart: what rounding explains, and what it does not.

A sum of n products in floating point strays from the exact one by at most n · u · Σ|aᵢ bᵢ| (Higham 2002, §3.1), u being the
unit of rounding. Each comparison here recomputes in double precision from what the trace holds, so only the one step is off:
an `excess` is the largest difference in units of that bound, for which single precision will do. A right step stays below 1, a
wrong one is thousands above.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from xformer.components import Norm
from xformer.components.component import OTHER_ROUNDINGS


def unit(value: Tensor) -> float:
    """The unit of rounding of the numbers as they were stored."""
    return torch.finfo(value.dtype).eps


def excess(made: Tensor, expected: Tensor, bound: Tensor) -> float:
    """The largest |made − expected| in units of `bound`; ∞ where the shapes differ. Equal numbers are 0 apart, even −∞."""
    if made.shape != expected.shape:
        return float("inf")
    if made.numel() == 0:
        return 0.0
    made, tiny = made.double(), torch.finfo(torch.float32).tiny
    worst = ((made - expected).abs_() / (bound + tiny)).max().item()
    if math.isfinite(worst):
        return worst
    apart = (made - expected).abs_().masked_fill_(made == expected, 0.0)  # −∞ from −∞ is none
    return (apart / (bound + tiny)).nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()


def of_product(made: Tensor, a: Tensor, b: Tensor, plus: Tensor | None = None, factor: float = 1.0) -> float:
    """The excess of `made` over factor · a @ b + plus."""
    if a.shape[-1] != b.shape[-2]:
        return float("inf")
    expected, size = factor * (a.double() @ b.double()), factor * (a.float().abs() @ b.float().abs())
    if plus is not None:
        expected, size = expected + plus.double(), size + plus.double().abs()
    return excess(made, expected, (a.shape[-1] + OTHER_ROUNDINGS) * unit(made) * size)


def of_sum(made: Tensor, *parts: Tensor) -> float:
    """The excess of `made` over the sum of its parts."""
    if any(part.shape != made.shape for part in parts):
        return float("inf")
    expected = reduce(torch.add, (part.double() for part in parts))
    size = reduce(torch.add, (part.abs() for part in parts))
    return excess(made, expected, 2 * unit(made) * size)


def of_norm(made: Tensor, x: Tensor, norm: Norm, eps: float, gain: Tensor | None, shift: Tensor | None) -> float | None:
    """The excess of `made` over γ · n(x) + β.

    Args:
        made: What the norm put out [..., d_model].
        x: What it read, of the same shape.
        norm: The registered norm.
        eps: Its ε.
        gain: γ [d_model], or None where it is not known.
        shift: β [d_model], or None where it is not known or the norm has none.

    Returns:
        The excess; None where γ or β are not known.
    """
    if made.shape != x.shape:
        return float("inf")
    if gain is None or (shift is None and norm.has_shift):
        return None
    normal, size = norm.standardised(x, eps)
    gain = gain.double()
    shift = torch.zeros_like(gain) if shift is None else shift.double()
    bound = size * gain.abs() * (1 + normal.abs()) + OTHER_ROUNDINGS * shift.abs()
    return excess(made, gain * normal + shift, unit(made) * bound)
