"""The data flow between the operations of a program: consumers, projections, and what changes no number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from xformer.doctor.formulas.numbers import OVER, TIMES
from xformer.program.axis_tracker import AxisTracker
from xformer.program.record import Operation, Program, SourceLine, Value

CASTS = {
    "to", "float", "double", "half", "bfloat16", "type", "type_as", "contiguous", "clone", "detach", "dropout", "dropout1d",
    "dropout2d", "feature_dropout", "data",
}  # fmt: skip
"""Operations that return the numbers of their first argument, in another type."""
SAME_NUMBERS = CASTS | {
    "view", "reshape", "flatten", "unflatten", "transpose", "swapaxes", "permute", "movedim",
    "squeeze", "unsqueeze", "expand", "expand_as", "view_as", "reshape_as", "T", "mT", "t",
}  # fmt: skip
"""Operations that return the numbers of their first argument, in another type, order or shape."""
COPIES = SAME_NUMBERS | {
    "getitem", "chunk", "split", "unbind", "narrow", "select", "tensor_split", "split_with_sizes", "repeat_interleave",
    "repeat", "view_as_complex", "view_as_real",
}  # fmt: skip
"""Operations that copy numbers, or some of them."""
SUMS = {"add", "sub"}
_PRODUCTS = {"einsum", "tensordot", "conv1d"}
"""Products of which not every spelling is followed axis by axis."""


class Flow:
    """Which operations read a value, and which values a value was computed from."""

    def __init__(self, program: Program, axes: AxisTracker) -> None:
        self.program, self.axes = program, axes
        self.consumers: dict[Value, list[Operation]] = defaultdict(list)
        for operation in program.operations:
            for value in operation.inputs:
                self.consumers[value].append(operation)

    @staticmethod
    def root(value: Value, through: Collection[str] = SAME_NUMBERS) -> Value:
        """The value before operations that change no number."""
        while (operation := value.operation) is not None and operation.name in through and operation.inputs:
            value = operation.inputs[0]
        return value

    def projected(self, operation: Operation) -> Value | None:
        """What an operation multiplies by a weight matrix; None if it is no projection."""
        product = self.axes.products.get(operation)
        sides = operation.inputs[:2] if operation.name in _PRODUCTS else ()
        sides = sides if product is None else (product.left, product.right)
        given = [one for one in sides if one.is_from_inputs and one.dtype.is_floating_point]
        return given[0] if len(sides) == 2 and len(given) == 1 else None

    def summands(self, operation: Operation) -> tuple[Value, ...]:
        """The two values that an operation adds, if both depend on the inputs; a bias is no summand."""
        values = tuple(one for one in operation.inputs if is_stream(one))
        is_sum = operation.name in SUMS and len(values) == 2 and values[0].shape.numel() == values[1].shape.numel()
        return values if is_sum else ()

    def rescaled(self, operation: Operation) -> Value | None:
        """What an operation multiplies by a number or a weight for each feature, or adds a bias to; None otherwise."""
        if operation.name in SAME_NUMBERS:
            return operation.inputs[0]
        values = [one for one in operation.inputs if is_stream(one)]
        is_scaled = operation.name in TIMES | OVER | SUMS and len(values) == 1 and len(operation.args) >= 2
        return values[0] if is_scaled and operation.result.shape == values[0].shape else None

    def with_bias(self, projection: Operation) -> Value:
        """The result of a projection, after a bias that is added by an operation of its own."""
        value = projection.result
        for operation in self.consumers[value]:
            if operation.name == "add" and self.rescaled(operation) is value:
                return operation.result
        return value

    def before(self, values: Iterable[Value], *, without: Value | Collection[Value] | None = None) -> set[Value]:
        """The values from which these were computed, and themselves; `without`: on ways that avoid these values."""
        avoided = {without} if without is None or isinstance(without, Value) else {*without}
        left, seen = list(values), set[Value]()
        while left:
            value = left.pop()
            if value in seen or value in avoided:
                continue
            seen.add(value)
            if value.before is not None:
                left.append(value.before)
            if value.operation is not None:
                left += value.operation.inputs
        return seen


def called_with(one: Operation, other: Operation) -> SourceLine | None:
    """The line by which the innermost function that runs both operations runs the first."""
    functions = {(line.file, line.function) for line in other.callers}
    return next((line for line in one.callers if (line.file, line.function) in functions), one.line)


def parting(one: Operation, other: Operation) -> SourceLine | None:
    """The line at which the calls that lead to the first operation part from those to the other."""
    pairs = zip(one.callers[::-1], other.callers[::-1], strict=False)
    return next((line for line, its in pairs if line != its), one.line)


def is_stream(value: Value) -> bool:
    """Whether a value depends on the inputs, and is no integer."""
    return value.is_from_inputs and (value.dtype.is_floating_point or value.dtype.is_complex)


def same_size(one: Value, other: Value) -> bool:
    """Whether two values have as many numbers, and the last axis of each is one of the other."""
    is_alike = one.shape[-1:] == other.shape[-1:] or (one.shape[-1] in other.shape and other.shape[-1] in one.shape)
    return is_alike and one.shape.numel() == other.shape.numel()
