"""Signs that a module is meant to be causal: what it declares, and the masks that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.program.record import record, source_of

MASKING = {"masked_fill", "where", "add", "sub", "mul", "setitem", "scaled_dot_product_attention"}
"""Operations that may apply a mask."""


def declared_causal(module: nn.Module) -> bool | None:
    """Whether a plain module declares that it is causal, by a flag, a buffer or its name; None if it declares nothing."""
    flags = [getattr(one, name) for one in module.modules() for name in ("is_causal", "causal") if hasattr(one, name)]
    if flags:
        return any(value is True for value in flags)
    is_named = any(word in type(module).__name__.lower() for word in ("gpt", "causal", "decoder"))
    return True if is_named or any(_is_triangle(buffer) for buffer in module.buffers()) else None


def share_ahead(pattern: Float[Tensor, "batch head query key"]) -> float:
    """Return the fraction of the cells above the diagonal that get attention."""
    ahead = torch.ones(pattern.shape[-2:]).triu(1).bool()
    return float((pattern[..., ahead] > 0).float().mean())


def _is_triangle(buffer: Tensor, diagonal: int = 0) -> bool:
    """Return whether a buffer is a causal mask: square, with one value up to a diagonal and another above the next."""
    if buffer.dim() < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 3:
        return False
    square = buffer.reshape(-1, *buffer.shape[-2:])[0].float()
    every = torch.ones_like(square)
    below, above = square[every.tril(diagonal).bool()], square[every.triu(diagonal + 2).bool()]
    return bool((below == below[0]).all() and (above == above[0]).all() and below[0] != above[0])


def is_mask(value: Tensor) -> bool:
    """Return whether a tensor is a causal mask, one that hides the query's own position, or a transposed one."""
    ways = (value, value.mT) if value.dim() > 1 else ()
    return any(_is_triangle(one, diagonal) for one in ways for diagonal in (0, -1))


def is_half_hidden(patterns: Iterable[Float[Tensor, "batch head query key"]]) -> bool:
    """Whether most later keys, or most earlier ones, get no weight in one of these patterns."""
    squares = [pattern for pattern in patterns if pattern.shape[-1] == pattern.shape[-2] > 2]
    return any(share_ahead(one) < 0.5 for pattern in squares for one in (pattern, pattern.mT))


@torch.no_grad()
def masks_with_triangle(module: nn.Module, call: Callable[[], Tensor], inputs: Any) -> bool:
    """Whether the code of a module masks something with a triangle, even if the mask has no effect.

    Args:
        module: The module.
        call: A call of it.
        inputs: What the call reads.
    """
    try:
        program = record(module, call, inputs, keep_of=MASKING)
    except Exception:  # a module may raise anything
        return False
    if any(one.kwargs.get("is_causal") for one in program.operations if one.name == "scaled_dot_product_attention"):
        return True
    if any(one.name in ("tril_indices", "triu_indices") for one in program.operations):
        return True
    masks = [value for one in program.operations if one.name in MASKING for value in one.inputs]
    return any(one.tensor is not None and is_mask(one.tensor) for one in masks if not source_of(one).is_from_inputs)
