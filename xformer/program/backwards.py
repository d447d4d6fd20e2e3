"""Follow the weights and scores of an attention back through elementwise operations and views.

Backwards(axes).to_normalisers(weights)     their softmaxes, in any spelling
Backwards(axes).to_products(scores)         their products of queries and keys
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from xformer.program.axes import Axis, Product, argument, has_inputs
from xformer.program.axis_tracker import AxisTracker
from xformer.program.record import UNSEEN, Operation, Value

KERNELS = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
_OPAQUE = {
    "linear", "embedding", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax",
    "einsum", "matmul", "bmm", "tensordot", "inner", "bilinear", "multi_dot", "chain_matmul",
    "cumsum", "cumprod", "fft", "ifft", "sort", "topk", "argsort", "gather", "scatter", "roll",
    "flip", "fliplr", "flipud", "rot90",
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
}  # fmt: skip
UNFOLLOWED = ("einsum", "tensordot", "multi_dot", "chain_matmul", "bilinear", "inner")
_BORDERS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "embedding", "conv1d", "conv2d", "conv3d")
_SOFTMAX = ("softmax", "log_softmax")
_CARRIED = (
    "masked_fill", "where", "mul", "tril", "triu", "clamp", "clamp_min", "transpose", "swapaxes", "permute", "mT", "contiguous",
    "clone", "to", "float",
)  # fmt: skip
"""What exponentials may pass through before they are divided by their sum: masks, and views with the same axes."""
NORMALISED = ("div", "mul", "exp", "einsum")
"""The functions whose numbers tell whether they complete a softmax that is not spelled as one."""
_FLAT = ("view", "reshape", "flatten")
_REDUCTIONS = (
    "sum", "mean", "max", "amax", "min", "amin", "logsumexp", "norm", "argmax", "argmin", "all", "any", "prod",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Normaliser:
    """A softmax, in any spelling."""

    operation: Operation
    """The operation that computes the weights."""
    scores: Value
    """The input of the softmax."""
    axis: int
    """The axis of the scores that it normalises."""
    base: float = math.e
    """What is raised to the power of the scores: 2 for `exp2`."""
    added: Literal["", "constant", "variable"] = ""
    """What is added to the sum of the exponentials, as exp / (1 + sum): a number or weight, or what depends on the inputs."""


class Backwards:
    """Follows values back through elementwise operations and views."""

    def __init__(self, axes: AxisTracker) -> None:
        self.axes = axes

    def to_normalisers(self, value: Value) -> list[Normaliser]:
        """The softmaxes of the sources of a value."""
        return [one for operation in self._passed(value) if (one := self._normaliser(operation)) is not None]

    def softmaxes(self, value: Value) -> list[Operation]:
        """The softmaxes that a value combines, also those of weights that do not depend on the inputs."""
        return [one for one in self._passed(value, is_any=True) if one.name in _SOFTMAX]

    def writes(self, value: Value) -> list[Operation]:
        """The operations that write what depends on the inputs into a part of the tensor that a value is made from."""
        return [
            one
            for one in self._passed(value)
            if one.name in ("setitem", "copy", "index_put", "index_copy")
            and one.inputs[-1].is_from_inputs
            and one.inputs[-1].shape.numel() > 1
            and len(one.inputs) > 1
        ]

    def _passed(self, value: Value, *, is_any: bool = False) -> list[Operation]:
        """The operations from a value back to its softmaxes and products, the first one first.

        `is_any`: also those that do not depend on the inputs.
        """
        left, seen = [value.operation], set[Operation]()
        while left:
            operation = left.pop()
            if operation is None or operation in seen:
                continue
            seen.add(operation)
            if _is_transparent(operation) and operation not in self.axes.products and not self._normaliser(operation):
                left += [one.operation for one in (operation.inputs if is_any else _same_kind(operation))]
        return sorted(seen, key=lambda one: one.index)

    def _normaliser(self, operation: Operation) -> Normaliser | None:
        if operation.name == "softmax":
            source, dim = operation.inputs[0], argument(operation, 1, "dim")
            return None if dim is None else self._over(operation, source, self._axis(source, dim))
        if operation.name == "exp":
            inner = operation.inputs[0].operation
            if inner is None or inner.name != "log_softmax":
                return self._minus_logsumexp(operation) or self._normalised(operation)
            return self._over(operation, inner.inputs[0], self._axis(inner.inputs[0], argument(inner, 1, "dim")))
        if operation.name in ("div", "mul") and len(operation.inputs) == 2:
            return self._divided_by_sum(operation) or self._normalised(operation)
        if sums_nothing(operation):
            return self._normalised(operation)
        if operation.name == "normalize" and argument(operation, 1, "p") == 1:
            numerator = operation.inputs[0]
            exponent = self._exponent(numerator)
            axis = self._axis(numerator, argument(operation, 2, "dim", 1))
            return None if exponent is None else self._over(operation, exponent[0], axis, exponent[1])
        return None

    def _axis(self, value: Value, dim: int) -> Axis:
        return self.axes.of(value)[int(dim) % len(value.shape)] if value.shape else ()

    def _over(
        self,
        operation: Operation,
        scores: Value,
        axis: Axis,
        base: float = math.e,
        added: Literal["", "constant", "variable"] = "",
    ) -> Normaliser | None:
        """A softmax over an axis of the scores, before they were flattened."""
        while (before := scores.operation) is not None and before.name in _FLAT:
            if axis not in self.axes.of(before.inputs[0]):
                break
            scores = before.inputs[0]
        at = next((at for at, one in enumerate(self.axes.of(scores)) if one == axis), None)
        return None if at is None else Normaliser(operation, scores, at, base, added)

    def _minus_logsumexp(self, operation: Operation) -> Normaliser | None:
        """exp(scores − logsumexp(scores))"""
        inner = operation.inputs[0].operation
        if inner is None or inner.name != "sub" or len(inner.inputs) != 2:
            return None
        scores, total = inner.inputs
        if total.operation is None or total.operation.name != "logsumexp" or total.operation.inputs[0] is not scores:
            return None
        dim = argument(total.operation, 1, "dim")
        return self._over(operation, scores, self._axis(scores, dim[0] if isinstance(dim, tuple) else dim))

    def _divided_by_sum(self, operation: Operation) -> Normaliser | None:
        """exp(scores) / exp(scores).sum(dim), also as a product with 1 / sum"""
        numerator, denominator = operation.inputs
        if operation.name == "mul":
            inverse = denominator.operation
            if inverse is None or inverse.name not in ("reciprocal", "div") or len(inverse.inputs) != 1:
                return None
            denominator = inverse.inputs[0]
        total, added = denominator.operation, ""
        while total is not None and total.name in (
            "add",
            "clamp",
            "clamp_min",
            "unsqueeze",
            "expand",
            "expand_as",
            "maximum",
        ):
            if total.name == "add":
                is_variable = any(value.is_from_inputs for value in total.inputs[1:])
                added = "variable" if is_variable or added == "variable" else "constant"
            total = total.inputs[0].operation
        if total is None or total.name != "sum" or total.inputs[0] is not numerator:
            return None
        exponent = self._exponent(numerator)
        dim = argument(total, 1, "dim", total.kwargs.get("axis"))
        dim = dim[0] if isinstance(dim, tuple | list) else dim
        if exponent is None or dim is None:
            return None
        return self._over(operation, exponent[0], self._axis(numerator, dim), exponent[1], added)

    def _normalised(self, operation: Operation) -> Normaliser | None:
        """exp(scores) with a factor or a divisor, or of a difference, where the numbers of this run sum to 1 over an axis."""
        if operation.result.tensor is None:
            return None
        source = operation if operation.name != "exp" else operation.inputs[0].operation
        pairs = [] if source is None or len(source.inputs) != 2 else [source.inputs[:2], source.inputs[1::-1]]
        if source is not operation and source is not None and source.name != "sub":
            return None
        for numerator, other in pairs if operation.name in ("mul", "einsum") else pairs[:1]:
            exponent = (numerator, math.e) if operation.name == "exp" else self._exponent(numerator)
            axes, others = self.axes.of(operation.result), self.axes.of(other)
            summed = [at for at, one in enumerate(axes) if one and one not in others]
            if exponent and len(summed) == 1 and is_distribution(operation.result.tensor.movedim(summed[0], -1)):
                return self._over(operation, exponent[0], axes[summed[0]], exponent[1])
        return None

    def _exponent(self, value: Value) -> tuple[Value, float] | None:
        """The scores of which a value is the exponential, without a subtracted maximum, and the base of the exponential."""
        operation = value.operation
        if operation is None:
            return None
        if operation.name in _CARRIED or sums_nothing(operation):
            found = [exponent for one in _same_kind(operation) if (exponent := self._exponent(one)) is not None]
            return found[0] if len(found) == 1 else None
        base = base_of(operation)
        if base is None:
            return None
        source = operation.inputs[0]
        inner = source.operation
        if inner is not None and inner.name == "sub" and len(inner.inputs) == 2:
            subtracted = inner.inputs[1].operation
            while subtracted is not None and subtracted.name in ("detach", "unsqueeze", "getitem", "clamp"):
                subtracted = subtracted.inputs[0].operation
            if (
                subtracted is not None
                and subtracted.name in ("max", "amax")
                and subtracted.inputs[0] is inner.inputs[0]
            ):
                return inner.inputs[0], base
        return source, base

    def is_unseen(self, value: Value, depth: int = 0) -> bool:
        """Whether a value comes from scripted or compiled code, through elementwise functions and softmaxes only."""
        operation = value.operation
        if operation is None or depth > 40:
            return value.name == UNSEEN
        if operation.name == UNSEEN:
            return True
        is_product = operation in self.axes.products
        is_followed = operation.name in _SOFTMAX or (not is_product and _is_transparent(operation))
        return is_followed and any(
            self.is_unseen(one, depth + 1) for one in _same_kind(operation) if one.shape.numel() > 1
        )

    def has_softmax(self, values: Sequence[Value], n: int = 40) -> bool:
        """Whether any of these values comes from a softmax, through anything but products and projections."""
        left, seen = [value.operation for value in values], set[Operation]()
        while left and len(seen) < n:
            operation = left.pop()
            if operation is None or operation in seen:
                continue
            if operation.name in _SOFTMAX and operation.result.is_from_inputs:
                return True
            seen.add(operation)
            if operation not in self.axes.products and operation.name not in (*KERNELS, *UNFOLLOWED, *_BORDERS):
                left += [one.operation for one in _same_kind(operation)]
        return False

    def is_masked(self, weights: Value) -> bool:
        """Whether the weights, or the exponentials that they were computed from, were masked."""
        operation = weights.operation
        while operation is not None and operation.name not in ("exp", "exp2", *_SOFTMAX):
            if operation.name in ("masked_fill", "where", "mul", "tril", "triu", "setitem") or sums_nothing(operation):
                return True
            operation = next((one.operation for one in _same_kind(operation)), None)
        return False

    def to_products(self, value: Value, *, through_mixing: bool = False) -> list[tuple[Product, tuple[Operation, ...]]]:
        """The products that a value was computed from, each with the operations after it, in order.

        `through_mixing`: also follow softmaxes and products with weights, as between heads.
        """
        found: list[tuple[Product, tuple[Operation, ...]]] = []
        left, seen = [(value, tuple[Operation, ...]())], set[Operation]()
        while left:
            one, chain = left.pop()
            operation = one.operation
            if operation is None or operation in seen or len(chain) > 40:
                continue
            seen.add(operation)
            product = self.axes.products.get(operation)
            is_mixing = through_mixing and (
                operation.name in _SOFTMAX or (product is not None and not has_positions(product))
            )
            if product is not None and not is_mixing:
                found.append((product, chain))
            elif is_mixing or _is_transparent(operation):
                left += [(source, (operation, *chain)) for source in reversed(_same_kind(operation))]
        return found


def has_positions(product: Product) -> bool:
    """Whether a product may be that of queries and keys: both have positions, and it is no projection by a weight."""
    if product.operation.name == "linear" or not (product.rows or product.columns):
        return False
    if not (product.rows and product.columns) and not has_inputs((*product.rows, *product.columns)):
        return False  # one of them may be a single position
    for one in (product.left, product.right):
        if not one.is_from_inputs and (one.is_weight or len(one.shape) < 3):
            return False
    return product.left.is_from_inputs or product.right.is_from_inputs


def base_of(operation: Operation) -> float | None:
    """What an operation raises to the power of its argument: e for `exp`, 2 for `exp2` and `2**scores`; None for others."""
    if operation.name == "pow":
        is_reflected = getattr(operation.function, "__name__", "") == "__rpow__"
        base = operation.args[1 if is_reflected else 0]
        return float(base) if isinstance(base, int | float) else None
    return {"exp": math.e, "exp2": 2.0}.get(operation.name)


def sums_nothing(operation: Operation) -> bool:
    """Whether an einsum multiplies its operands as they are, as "bhqk,bhq->bhqk"."""
    equation = operation.args[0] if operation.name == "einsum" else ""
    given, _, result = equation.partition("->") if isinstance(equation, str) else ("", "", "")
    return bool(result) and set(given) <= {*result, ",", " "}


def is_distribution(weights: Tensor) -> bool:
    """Whether every row is a distribution, or all zero."""
    total = weights.float().sum(dim=-1)
    is_normalised = ((total - 1).abs() < 1e-3) | (total == 0)
    return bool((weights >= 0).all() and is_normalised.all() and total.any())


def _is_transparent(operation: Operation) -> bool:
    if operation.name in ("max", "min") and len(operation.inputs) == 2:
        return True  # of two tensors, an elementwise function
    if sums_nothing(operation):
        return True
    return operation.name not in _OPAQUE and operation.name not in _REDUCTIONS and operation.name not in KERNELS


def _same_kind(operation: Operation) -> list[Value]:
    """The arguments that an operation may have passed on: those of floating point, which depend on the inputs."""
    return [one for one in operation.inputs if one.dtype.is_floating_point and one.is_from_inputs]
