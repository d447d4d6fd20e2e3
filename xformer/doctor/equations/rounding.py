"""Error bounds that separate rounding from mistakes.

The floating-point error of a sum of n products is at most n · u · Σ|aᵢ bᵢ| (Higham 2002, §3.1), where u is the unit roundoff.
Each comparison recomputes one step in double precision from the trace, so only that step contributes: the `excess` is the
largest difference in units of that bound (computed in single precision). It is below 1 for a correct step and in the thousands
for a wrong one.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from xformer.components import Norm
from xformer.components.component import OTHER_ROUNDINGS


def epsilon(value: Tensor) -> float:
    """Return the machine epsilon of a tensor's type."""
    return torch.finfo(value.dtype).eps


def excess(made: Tensor, expected: Tensor, bound: Tensor) -> float:
    """Return the largest |made − expected| in units of `bound`; ∞ if the shapes differ. Equal numbers differ by 0, even −∞."""
    if made.shape != expected.shape:
        return float("inf")
    if made.numel() == 0:
        return 0.0
    made, tiny = made.double(), torch.finfo(torch.float32).tiny
    worst = ((made - expected).abs_() / (bound + tiny)).max().item()
    if math.isfinite(worst):
        return worst
    apart = (made - expected).abs_().masked_fill_(made == expected, 0.0)  # −∞ − (−∞) counts as 0
    return (apart / (bound + tiny)).nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()


def of_product(made: Tensor, a: Tensor, b: Tensor, plus: Tensor | None = None, factor: float = 1.0) -> float:
    """Return the excess of `made` over factor · a @ b + plus."""
    if a.shape[-1] != b.shape[-2]:
        return float("inf")
    expected, size = factor * (a.double() @ b.double()), factor * (a.float().abs() @ b.float().abs())
    if plus is not None:
        expected, size = expected + plus.double(), size + plus.double().abs()
    return excess(made, expected, (a.shape[-1] + OTHER_ROUNDINGS) * epsilon(made) * size)


def of_sum(made: Tensor, *parts: Tensor) -> float:
    """Return the excess of `made` over the sum of its parts."""
    if any(part.shape != made.shape for part in parts):
        return float("inf")
    expected = reduce(torch.add, (part.double() for part in parts))
    size = reduce(torch.add, (part.abs() for part in parts))
    return excess(made, expected, 2 * epsilon(made) * size)


def of_norm(made: Tensor, x: Tensor, norm: Norm, eps: float, gain: Tensor | None, shift: Tensor | None) -> float | None:
    """Return the excess of `made` over γ · n(x) + β.

    Args:
        made: The output of the norm, [..., d_model].
        x: The input of the norm, of the same shape.
        norm: The registered norm.
        eps: Its ε.
        gain: γ [d_model], or None if unknown.
        shift: β [d_model], or None if unknown or the norm has none.

    Returns:
        The excess; None if γ or β is unknown.
    """
    if made.shape != x.shape:
        return float("inf")
    if gain is None or (shift is None and norm.has_shift):
        return None
    normal, size = norm.standardised(x, eps)
    gain = gain.double()
    shift = torch.zeros_like(gain) if shift is None else shift.double()
    bound = size * gain.abs() * (1 + normal.abs()) + OTHER_ROUNDINGS * shift.abs()
    return excess(made, gain * normal + shift, epsilon(made) * bound)
