"""The norms of a program: fused functions, and those written as mean, variance and root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xformer.doctor.formulas.flow import CASTS, Flow, is_stream
from xformer.doctor.formulas.formula import CLOSE
from xformer.doctor.formulas.numbers import OVER, TIMES, factor_of
from xformer.program.axes import argument
from xformer.program.record import Operation, Value

_FUSED = {
    "layer_norm": "layer norm",
    "rms_norm": "RMS norm",
    "batch_norm": "batch norm",
    "instance_norm": "instance norm",
}
_REDUCTIONS = {"mean": 1, "var": 1, "std": 1, "var_mean": 1, "std_mean": 1, "sum": 1, "norm": 2, "vector_norm": 2}
"""Functions of a statistic, and the place of the argument with its axes."""
_POWERS = {"pow", "square", "abs"}
OTHER = "no norm"
"""What multiplies or divides numbers by another function of their statistics than a norm does."""
_CLOSE, _MAX_EPSILON = 0.03, 1e-3
"""Largest relative difference between the square by which numbers were divided and their own, but for ε; and largest ε."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm.

    Attributes:
        kind: "layer norm", "RMS norm", "L2 norm", "batch norm", "instance norm", or `OTHER`.
        x: Its input.
        result: Its result, with weight and bias.
        over: What its statistics are over: "features", "positions" and "batch".
        operation: The operation that divides by the spread, or the statistic over other axes than the features.
    """

    kind: str
    x: Value
    result: Value
    over: tuple[str, ...]
    operation: Operation
    epsilon: float | None = None
    """The ε of a fused function, if it is not small beside the mean square of the features."""

    @property
    def cause(self) -> str:
        """What is unusual in it, a key of `CAUSES_OF_FORMULAS`; "" for nothing."""
        if self.kind == "batch norm":
            return "batch_norm"
        if self.kind == OTHER:
            return "norm_formula"
        if self.epsilon is not None:
            return "norm_epsilon"
        return next((f"norm_over_{one}" for one in ("positions", "batch") if one in self.over), "")


def norms_of(flow: Flow) -> list[Norm]:
    """The norms of a program, in order; those whose axes are not known are left out."""
    found, statistics = list[Norm](), dict[Value, list[Operation]]()
    for operation in flow.program.operations:
        if operation.name in _FUSED and is_stream(operation.inputs[0]):
            norm = _fused(flow, operation)
        elif operation.name in _REDUCTIONS and operation.inputs and is_stream(operation.inputs[0]):
            statistics.setdefault(_reduced(flow, operation.inputs[0]), []).append(operation)
            continue
        elif operation.name in TIMES | OVER:
            norm = _written(flow, operation, statistics)
        else:
            continue
        if norm is not None:
            found.append(norm)
    return found


def _fused(flow: Flow, operation: Operation) -> Norm | None:
    x = operation.inputs[0]
    n = len(x.shape)
    if operation.name == "batch_norm":
        dims = [one for one in range(n) if one != 1]
    elif operation.name == "instance_norm":
        dims = list(range(2, n))
    else:
        shape = argument(operation, 1, "normalized_shape")
        dims = list(range(n - (1 if isinstance(shape, int) else len(shape)), n))
    over, kind = _names(flow, x, dims), _FUSED[operation.name]
    epsilon = _epsilon(operation, kind, dims)
    return Norm(kind, flow.root(x, CASTS), operation.result, over, operation, epsilon) if over else None


def _epsilon(operation: Operation, kind: str, dims: list[int]) -> float | None:
    """The ε of a layer or RMS norm that is as large as a usual variance, and as the recorded one; None for any other."""
    place, x = {"layer norm": 4, "RMS norm": 3}.get(kind), operation.inputs[0].tensor
    epsilon = None if place is None else argument(operation, place, "eps")
    if x is None or epsilon is None or epsilon <= _MAX_EPSILON:
        return None
    x = x.double()
    spread = x - x.mean(dim=dims, keepdim=True) if kind == "layer norm" else x
    return epsilon if epsilon > _CLOSE * float(spread.square().mean()) else None


def _reduced(flow: Flow, value: Value) -> Value:
    """What a statistic is computed from, without squares and without the mean that is subtracted."""
    value = flow.root(value, CASTS)
    while (operation := value.operation) is not None:
        sources = {flow.root(one, CASTS) for one in operation.inputs}
        is_square = operation.name in _POWERS or (operation.name in TIMES and len(operation.inputs) == 2)
        if is_square and len(sources) == 1:
            value = sources.pop()
        elif (x := _centred(flow, operation)) is not None:
            value = x
        else:
            break
    return value


def _centred(flow: Flow, operation: Operation) -> Value | None:
    """What an operation subtracts its own mean from; None if it does something else."""
    if operation.name != "sub" or len(operation.inputs) != 2:
        return None
    x, mean = (flow.root(one, CASTS) for one in operation.inputs)
    by = mean.operation
    if by is None or by.name not in ("mean", "var_mean", "std_mean"):
        return None
    return x if flow.root(by.inputs[0], CASTS) is x else None


def _written(flow: Flow, operation: Operation, statistics: dict[Value, list[Operation]]) -> Norm | None:
    """The norm whose numbers an operation divides by their spread, confirmed by the recorded numbers."""
    streams = [one for one in operation.inputs if is_stream(one)]
    if len(streams) != 2 or operation.result.tensor is None:
        return None
    for numbers, spread in (streams, streams[::-1]):
        bare, x = _without_weights(flow, numbers, statistics)
        if x is None or x.tensor is None or bare.tensor is None or x.shape != operation.result.shape:
            continue
        above = flow.before([spread], without=x)
        used = [one for one in statistics.get(x, []) if not above.isdisjoint(one.results)]
        mean = None if bare.operation is None or bare is x else flow.root(bare.operation.inputs[1], CASTS).operation
        places = {_dims(one) for one in used if one is not mean} or {_dims(one) for one in used}
        centred = None if mean is None else _dims(mean)
        if len(places) != 1 or (dims := places.pop()) is None or (mean is not None and centred is None):
            continue
        kind = _kind(x.tensor, bare.tensor, numbers.tensor, operation.result.tensor, centred, dims)
        if kind == "L2 norm":
            following = [one for one in map(factor_of, flow.consumers[operation.result]) if one is not None]
            n = math.prod(x.shape[one] for one in dims)
            kind = "RMS norm" if any(math.isclose(one.value, n**0.5, rel_tol=_CLOSE) for one in following) else kind
        over = _names(flow, x, sorted({*dims, *(centred or ())}))
        is_learned = any(one.operation is not None and flow.projected(one.operation) is not None for one in above)
        if kind == OTHER and (over != ("features",) or spread.shape[-1:] != (1,) or is_learned):
            continue
        if kind and over:
            by = [
                one
                for one in (*used, *([] if mean is None else [mean]))
                if _names(flow, x, _dims(one) or ()) != ("features",)
            ]
            return Norm(
                kind,
                x,
                _with_weights(flow, operation.result),
                over,
                min(by, key=lambda one: one.index, default=operation),
            )
    return None


def _dims(operation: Operation) -> tuple[int, ...] | None:
    n = len(operation.inputs[0].shape)
    dims = argument(operation, _REDUCTIONS[operation.name], "dim", operation.kwargs.get("axis"))
    if dims is None and operation.name not in ("norm", "vector_norm"):
        return tuple(range(n))
    every = dims if isinstance(dims, list | tuple) else (dims,)
    known = [one % n for one in every if isinstance(one, int)]
    return tuple(sorted(known)) if len(known) == len(every) else None


def _without_weights(flow: Flow, value: Value, statistics: dict[Value, list[Operation]]) -> tuple[Value, Value | None]:
    """A value before it was multiplied by weights, and what it is without the mean that is subtracted; None if not known."""
    while True:
        root = flow.root(value, CASTS)
        if root in statistics:
            return root, root
        operation = root.operation
        if operation is None:
            return root, None
        if (x := _centred(flow, operation)) is not None:
            return root, x
        inner = flow.rescaled(operation)
        if inner is None or inner.shape != root.shape:
            return root, None
        value = inner


def _kind(
    x: Tensor, bare: Tensor, numbers: Tensor | None, y: Tensor, centred: tuple[int, ...] | None, dims: tuple[int, ...]
) -> str:
    """What divides numbers by the spread of x over these axes, if y is the result; `OTHER` if it is not the spread.

    "" if that cannot be said.

    Args:
        x: The input.
        bare: x, or x minus its mean.
        numbers: The same, which may be multiplied by weights.
        y: The numbers divided by the spread.
        centred: The axes of the mean; None if it is not subtracted.
        dims: The axes of the spread.
    """
    if numbers is None or not numbers.shape == bare.shape == x.shape:
        return ""
    x, bare, numbers, y = (one.double() for one in (x, bare, numbers, y))
    own = x if centred is None else x - x.mean(dim=centred, keepdim=True)
    if not (x.isfinite().all() and y.isfinite().all()) or float((own - bare).abs().max()) > CLOSE * float(
        x.abs().max()
    ):
        return ""
    n = math.prod(x.shape[one] for one in dims)
    if n == 1:  # one row of a batch minus itself
        return "layer norm" if centred is not None and not y.any() else ""
    divisor = (numbers * y).sum(dim=dims, keepdim=True) / y.square().sum(dim=dims, keepdim=True).clamp(min=1e-30)
    if float((numbers - divisor * y).abs().max()) > CLOSE * float(numbers.abs().max()):
        return ""
    kind = "RMS norm" if centred is None else "layer norm"
    for numerator in (own, x - x.mean(dim=dims, keepdim=True)) if centred is not None else (own,):
        spread = numerator.square().mean(dim=dims, keepdim=True).sqrt()
        for named, size in ((kind, 1.0), (kind, (n / (n - 1)) ** 0.5), ("L2 norm", n**0.5)):
            added = divisor.square() - (size * spread).square()  # ε
            epsilon = float(added.median().clamp(0, _MAX_EPSILON))
            if bool(((added - epsilon).abs() <= _CLOSE * divisor.square()).all()) and bool(spread.any()):
                return named
    return OTHER


def _with_weights(flow: Flow, value: Value) -> Value:
    """The value after the weights and the bias of a norm, and after a change of its type."""
    while True:
        following = flow.consumers[value]
        if len(following) != 1 or flow.rescaled(following[0]) is not value or len(following[0].results) != 1:
            return value
        if following[0].result.shape != value.shape:
            return value
        value = following[0].result


def _names(flow: Flow, x: Value, dims: Sequence[int]) -> tuple[str, ...]:
    """What axes of a value [batch, pos, features] are, in any order; () if that is not known."""
    names = list[str]()
    axes = flow.axes.of(x)
    for axis in axes:
        origins = {atom.origin for atom in axis}
        if not axis or origins == {"new"}:
            names.append("")
        elif origins == {"input"}:
            roots = {atom.root.name.rpartition(":")[2] for atom in axis}
            names.append({"0": "batch", "1": "positions"}.get(roots.pop(), "?") if len(roots) == 1 else "rows")
        else:
            names.append("features" if origins <= {"weight"} else "?")
    if (
        names.count("") == 1
        and len(names) == 3
        and {"positions", "features"} <= {*names}
        and x.shape[names.index("")] == 1
    ):
        names[names.index("")] = "batch"
    found = tuple(names[one] for one in dims)
    return found if found and {*found} <= {"features", "positions", "batch"} else ()
