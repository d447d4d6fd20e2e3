"""Which matrix of an unknown layer maps its heads, or its neurons, back to the stream: whose product comes out there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xformer.adapters.probe import Call, Probe

CLOSE = 1e-4
"""How far a product may be from what came out, as a share of its largest number."""


@dataclass(frozen=True)
class ProjectionPlace:
    """Where the matrix is."""

    module: str
    is_in_by_out: bool
    """Whether its rows belong to what goes in, as in GPT-2's; else they belong to what comes out, as in `nn.Linear`."""
    norm: str | None = None
    """The norm between the matrix and the stream, where there is one."""
    factor: float = 1.0


def projection_place(
    seen: Probe, inside: Tensor | None, after: int, adds: Call, factor: float
) -> ProjectionPlace | None:
    """The matrix that reads `inside`, [batch, pos, width], after a time, and gives what `adds` adds; None for none."""
    if inside is None or adds.given is None:
        return None
    for call in seen.calls:
        if not (after < call.begin and call.end <= adds.end and call.is_matrix):
            continue
        if call.taken is None or call.given is None or not _same(call.taken, inside):
            continue
        side = _side(call)
        norm = None if _same(call.given, adds.given) else _norm_between(seen, call, adds)
        if side is not None and (norm is not None or _same(call.given, adds.given)):
            return ProjectionPlace(call.path, side, norm, factor)
    return None


def heads_side_by_side(z: Tensor | None, n_query: int) -> Tensor | None:
    """z as the projection reads it, [batch, query, head · d_value], in whichever order an attention gave it."""
    if z is None or z.dim() not in (3, 4):
        return None
    z = z[None] if z.dim() == 3 else z
    return (z if z.shape[1] == n_query and z.shape[2] != n_query else z.transpose(1, 2)).flatten(2)


def _norm_between(seen: Probe, call: Call, adds: Call) -> str | None:
    for one in seen.calls:
        is_between = call.begin < one.begin and one.end <= adds.end and one.is_norm
        if is_between and _same(one.taken, call.given) and _same(one.given, adds.given):
            return one.path
    return None


def _side(call: Call) -> bool | None:
    """How its matrix lies; None where it does more than multiply with it and add a bias."""
    assert call.taken is not None
    assert call.given is not None
    weight, bias = call.module.get_parameter("weight"), getattr(call.module, "bias", None)
    for is_in_by_out, matrix in ((False, weight.T), (True, weight)):
        if matrix.shape == (call.taken.shape[-1], call.given.shape[-1]):
            product = call.taken @ matrix.detach() + (0 if bias is None else bias.detach())
            if _same(product, call.given):
                return is_in_by_out
    return None


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.numel() != other.numel():
        return False
    close = max(CLOSE, 4 * torch.finfo(other.dtype).eps)
    return bool(torch.allclose(one.flatten(), other.flatten(), rtol=0, atol=close * float(other.abs().max())))
