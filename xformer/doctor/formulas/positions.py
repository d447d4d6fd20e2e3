"""Positions that are added to the embeddings: sinusoids, recovered from their values."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.numbers import constants_before
from xformer.program.record import Operation


def positions(operation: Operation) -> Formula | None:
    """The sinusoids that an operation adds, recovered from their values; None if it adds something else."""
    for value in operation.inputs:
        table = value.tensor
        if value.is_from_inputs or table is None or not table.is_floating_point() or table.dim() < 2:
            continue
        n, width = table.shape[-2:]
        if n < 3 or width < 8 or width % 2 or table.numel() != n * width:
            continue
        rows = table.reshape(n, width).double()
        for sin, cos in ((rows[:, 0::2], rows[:, 1::2]), rows.chunk(2, dim=1)):
            if (found := _sinusoids(sin, cos, width)) is not None:
                by = next((one for one in constants_before(operation) if one.name in _POWERS), operation)
                return part_of("positions", *found, by if found[1] else operation, _SINUSOIDS)
    return None


_POWERS = {"pow", "exp", "exp2"}
_SINUSOIDS = "sin and cos of pos / 10000^(2i/d)"


def _sinusoids(sin: Float[Tensor, "pos pair"], cos: Float[Tensor, "pos pair"], width: int) -> tuple[str, str] | None:
    """The formula of sinusoids with geometric frequencies, and its cause; None if these are no such sinusoids."""
    if float((sin.square() + cos.square() - 1).abs().max()) > CLOSE:  # Vaswani et al. 2017, section 3.5
        return None
    angle = torch.atan2(sin, cos)
    step = torch.remainder(angle[1:] - angle[:-1], 2 * math.pi)  # [pos, pair], the frequency of each pair
    frequency = step.mean(dim=0)
    if float((step - frequency).abs().max()) > CLOSE or not ((frequency > 0) & (frequency <= 1 + CLOSE)).all():
        return None
    decay = -frequency.log().diff()  # of the logarithm, from pair to pair
    rate = float(decay.mean())
    if rate <= 0 or float((decay - rate).abs().max()) > 0.01 * rate:
        return None
    usual = 2 * math.log(10_000) / width
    if any(math.isclose(rate, one, rel_tol=0.01) for one in (usual, usual * width / (width - 2))):
        return _SINUSOIDS, ""
    power = next(
        (text for factor, text in ((2, "4i/d"), (0.5, "i/d")) if math.isclose(rate, factor * usual, rel_tol=0.01)), ""
    )
    if power:
        return f"sin and cos of pos / 10000^({power})", "sinusoid_exponent"
    return f"sin and cos of pos / {math.exp(rate * width / 2):.4g}^(2i/d)", ""
