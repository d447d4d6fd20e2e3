"""One parameter of many models of one shape, which each layer takes for that of one: it has that shape, and means them all.

    y = x Wᵀ + b   of rows x [model · batch, pos, in]   is   yᵐ = xᵐ Wᵐᵀ + bᵐ   as one batched product

The rows of all models stand under one another, model by model. Whatever has no parameters (attention, masks, ReLU) treats all
rows alike and need not know of models; what has, asks the parameter, which knows whose rows are whose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from xformer.training.stacked_functions import LayerNorm, Linear


class StackedWeight(Tensor):
    """Looks like the first model's; `stacked` is that of all, and the one thing that is computed with."""

    stacked: Float[Tensor, "model *shape"]

    @staticmethod
    def of(stacked: Float[Tensor, "model *shape"]) -> StackedWeight:
        weight = stacked[0].detach().as_subclass(StackedWeight)
        weight.stacked = stacked
        return weight

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (stacked := _STACKED.get(func)) is not None:
            return stacked(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__get__":  # its shape, its dtype
            return super().__torch_function__(func, types, args, kwargs or {})
        raise NotImplementedError(f"{func} has not been written for the parameters of many models at once.")


def stacked_of(*weights: Tensor | None) -> list[Tensor | None]:
    """What layers' parameters mean."""
    return [weight.stacked if isinstance(weight, StackedWeight) else None for weight in weights]


def _linear(x: Tensor, weight: StackedWeight, bias: StackedWeight | None = None) -> Tensor:
    return Linear.apply(x, *stacked_of(weight, bias))


def _layer_norm(x: Tensor, shape: Sequence[int], weight: StackedWeight, bias: StackedWeight, eps: float) -> Tensor:
    return LayerNorm.apply(x, weight.stacked, bias.stacked, eps)


def _embedding(index: Tensor, weight: StackedWeight, **defaults: Any) -> Tensor:
    n_models, n_rows, _ = weight.stacked.shape
    first = torch.arange(0, n_models * n_rows, n_rows, device=index.device)  # [model]
    flat = index.view(n_models, -1) + first[:, None]  # [model, cell]
    rows = weight.stacked.flatten(0, 1).index_select(
        0, flat.view(-1)
    )  # its gradient takes half the time of F.embedding's
    return rows.view(*index.shape, -1)


def _some_rows(weight: StackedWeight, rows: slice) -> StackedWeight:
    return StackedWeight.of(weight.stacked[:, rows])


def _expand(weight: StackedWeight, n: int, *sizes: int) -> Tensor:
    """The vector of each model as [model · batch, …, d]."""
    each = weight.stacked  # [model, d]
    wide = each.view(len(each), *[1] * len(sizes), -1).expand(-1, n // len(each), *sizes)
    return wide.flatten(0, 1)


_STACKED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    F.embedding: _embedding,
    Tensor.__getitem__: _some_rows,
    Tensor.expand: _expand,
}
