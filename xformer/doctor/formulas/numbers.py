"""The numbers by which operations multiply."""

from __future__ import annotations

from typing import NamedTuple

from xformer.program.record import Operation, Value, source_of

TIMES, OVER = {"mul", "multiply"}, {"div", "divide", "true_divide"}


class Factor(NamedTuple):
    value: float
    """What the other argument is multiplied with."""
    other: Value
    is_learned: bool


def factor_of(operation: Operation) -> Factor | None:
    """The number by which an operation multiplies its other argument; None if it is none."""
    if len(operation.args) < 2:
        return None
    left, right = operation.args[:2]
    for given, other, is_second in ((right, left, True), (left, right, False)):
        if not isinstance(other, Value) or not other.is_from_inputs:
            continue
        value, is_learned = constant(given)
        if value is None or (operation.name in OVER and not is_second):
            continue
        return Factor(1 / value if operation.name in OVER else value, other, is_learned)
    return None


def constants_before(operation: Operation) -> list[Operation]:
    """The operations that made its arguments from nothing but constants, the last first."""
    reached, new = set[Operation](), [operation]
    while new:
        made = {
            source.operation for one in new for value in one.inputs if not (source := source_of(value)).is_from_inputs
        }
        new = [one for one in made if one is not None and one not in reached]
        reached.update(new)
    return sorted(reached, key=lambda one: -one.index)


def constant(given: object) -> tuple[float | None, bool]:
    """The value of a number or a tensor with one element, and whether it is learned; None for anything else, and for 0."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return (float(given) or None), False
    if isinstance(given, Value) and not given.is_from_inputs and given.shape.numel() == 1 and given.tensor is not None:
        return (float(given.tensor) or None), _is_from_weights(given)
    return None, False


def _is_from_weights(value: Value, depth: int = 0) -> bool:
    if value.operation is None or depth > 8:
        return value.is_weight
    return any(_is_from_weights(one, depth + 1) for one in value.operation.inputs)
