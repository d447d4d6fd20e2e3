"""The axes of every value of a program, by the rule of each operation.

Operations without a rule keep the axes of an argument of the same shape, as elementwise functions do; otherwise the axes of
their result are unknown, and nothing is concluded from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xformer.program import axis_rules, product_rules
from xformer.program.axes import (
    Atom,
    Axes,
    Axis,
    Origin,
    Product,
    new_axes,
    rank_of,
    size_of,
    unknown_axes,
    unknown_name,
)
from xformer.program.record import UNSEEN, Operation, Program, Value

_RULES = axis_rules.RULES | product_rules.RULES


class AxisTracker:
    """Computes the axes of every value of a program."""

    def __init__(self, program: Program) -> None:
        self.products: dict[Operation, Product] = {}
        self._features: set[Atom] = set()
        self._axes: dict[Value, Axes] = {}
        for operation in program.operations:
            for value, axes in zip(operation.results, self._results(operation), strict=True):
                sizes = tuple(map(size_of, axes))
                known = sizes == tuple(value.shape)
                self._axes[value] = axes if known else unknown_axes(value)

    def of(self, value: Value) -> Axes:
        """The axes of a value."""
        if value.before is not None:
            return self.of(value.before)
        if value.name == UNSEEN:
            self._axes[value] = unknown_axes(value)
        if value not in self._axes:
            origin: Origin = "input" if value.is_from_inputs else "weight" if value.is_weight else "new"
            self._axes[value] = new_axes(value.shape, origin, value.name)
            if origin == "input" and value.dtype.is_floating_point and len(value.shape) > 1:
                self._features.update(self._axes[value][-1 if len(value.shape) < 4 else 1])
        return self._axes[value]

    def is_features(self, axis: Axis) -> bool:
        """Whether an axis is the features of an input: the last axis of vectors, the second of an image."""
        return all(atom.root in self._features for atom in axis)

    def _results(self, operation: Operation) -> list[Axes]:
        rule = _RULES.get(operation.name)
        if rule is not None:
            found = rule(self, operation)
            if found is not None:
                return found if isinstance(found, list) else [found] * len(operation.results)
        return [self._elementwise(operation, value) for value in operation.results]

    def _elementwise(self, operation: Operation, value: Value) -> Axes:
        """The axes of the arguments, broadcast; unknown where no argument has an axis of that size."""
        return self.broadcast(operation.inputs, value.shape, unknown_name(value))

    def broadcast(self, values: Sequence[Value], shape: Sequence[int], unknown: str = "inputs") -> Axes:
        """The axes of a result of broadcasting, which come from the inputs where any argument's do.

        `unknown` names what makes an axis that no argument has.
        """
        found: list[Axis] = []
        values = sorted(values, key=lambda one: not one.dtype.is_floating_point)  # masks last
        operands = [self.of(one) for one in values if len(one.shape) <= len(shape)]
        for at, size in enumerate(shape):
            fitting = [axes[at - len(shape)] for axes in operands if len(axes) >= len(shape) - at]
            fitting = [axis for axis in fitting if size_of(axis) == size]
            best = max(fitting, key=rank_of, default=None)
            name = unknown if any(one.is_from_inputs for one in values) else ""
            found.append(best if best is not None else (Atom(size, "unknown", name),) if size != 1 else ())
        return tuple(found)
