"""Where a stack of a trace stands: what its activations are called, which tokens it reads, where each of them stands."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TraceStack:
    """One stack: "encoder" with the tokens, or "decoder" with the target of an encoder-decoder."""

    stack: str
    prefix: str
    """What stands before the names that a stack has once: "" where there is only one, else "encoder." or "decoder."."""
    table: str
    """The name of its embedding's table among the weights."""
    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]


def positions_of(valid: Bool[Tensor, "batch pos"]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Each token's index counted from the first token of its row, and from the last."""
    n = valid.shape[1]
    index = torch.arange(n, device=valid.device).expand_as(valid)
    first = index.masked_fill(~valid, n).amin(dim=1, keepdim=True)
    last = index.masked_fill(~valid, -1).amax(dim=1, keepdim=True)
    return (index - first).clamp(min=0), (last - index).clamp(min=0)
