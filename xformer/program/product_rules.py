"""Which axes a matrix product shares, keeps and sums, in any spelling."""

from __future__ import annotations

from collections.abc import Sequence

from xformer.program.axes import (
    Atom,
    Axes,
    Axis,
    Product,
    RuleTable,
    Tracker,
    argument,
    as_keys,
    bases,
    rank_of,
    size_of,
)
from xformer.program.record import Operation, Value

RULES = RuleTable()


def is_divided(axis: Axis) -> bool:
    """Whether an axis divides the output of a projection, as heads do."""
    return bool(axis) and all(atom.origin == "weight" and any(one.is_divisor for one in bases(atom)) for atom in axis)


def _product(
    of: Tracker,
    operation: Operation,
    left: Value,
    right: Value,
    pairs: Sequence[tuple[Axis | None, Axis | None]],
    contracted: tuple[Axis, Axis] | None,
) -> Axes:
    """Note a product, and return the axes of its result.

    Args:
        of: The tracker.
        operation: The operation that computes it.
        left: The left operand.
        right: The right operand.
        pairs: For each axis of the result the axes of the two operands; None for one that does not have it.
        contracted: The summed axis as each operand names it; None if there are several.
    """
    shared: list[Atom] = []
    others: list[Atom] = []
    rows: list[Atom] = []
    columns: list[Atom] = []
    axes: list[Axis] = []
    for one, other in pairs:
        is_single = one is not None and other is not None and size_of(one) == size_of(other) == 1
        if one is not None and other is not None and ((one and other) or is_single):
            axis, second = (one, other) if rank_of(one) >= rank_of(other) else (other, one)
            if is_divided(second) and left.is_from_inputs and right.is_from_inputs:
                axis, second = second, axis  # heads, even if those of cached keys are an axis of an input
            shared += axis
            others += second
        elif one:
            axis = one
            rows += axis
        else:
            axis = as_keys(other or ()) if left.is_from_inputs and right.is_from_inputs else other or ()
            columns += axis
        axes.append(axis)
    if contracted is not None:
        sides = tuple(shared), tuple(others), tuple(rows), tuple(columns)
        of.products[operation] = Product(operation, left, right, *sides, contracted)
    return tuple(axes)


@RULES.add("matmul", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "addmv", "addbmm")
def _matmul(of: Tracker, operation: Operation) -> Axes:
    left, right = operation.inputs[-2:] if operation.name.startswith(("badd", "add")) else operation.inputs[:2]
    a, b = list(of.of(left)), list(of.of(right))
    if len(a) == 1 and len(b) == 1:
        return ()
    n = max(len(a), len(b), 2) - 2
    lead: list[tuple[Axis | None, Axis | None]] = [
        (a[at - 2] if len(a) >= 2 - at else None, b[at - 2] if len(b) >= 2 - at else None) for at in range(-n, 0)
    ]
    row = [(a[-2], None)] if len(a) > 1 else []
    column = [(None, b[-1])] if len(b) > 1 else []
    return _product(of, operation, left, right, [*lead, *row, *column], (a[-1], b[-2] if len(b) > 1 else b[-1]))


@RULES.add("cdist")
def _distances(of: Tracker, operation: Operation) -> Axes:
    left, right = operation.inputs[:2]
    a, b = of.of(left), of.of(right)
    pairs: list[tuple[Axis | None, Axis | None]] = [*zip(a[:-2], b[:-2], strict=False), (a[-2], None), (None, b[-2])]
    return _product(of, operation, left, right, pairs, (a[-1], b[-1]))


@RULES.add("linear")
def _linear(of: Tracker, operation: Operation) -> Axes:
    x, weight = operation.inputs[:2]
    rows, w = list(of.of(x)), list(of.of(weight))
    pairs: list[tuple[Axis | None, Axis | None]] = [(row, None) for row in rows[:-1]]
    return _product(of, operation, x, weight, [*pairs, *([(None, w[0])] if len(w) > 1 else [])], (rows[-1], w[-1]))


@RULES.add("einsum")
def _einsum(of: Tracker, operation: Operation) -> Axes | None:
    equation, operands = operation.args[0], list(operation.inputs)
    if not isinstance(equation, str) or len(operands) > 2:
        return None
    given, arrow, wanted = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != len(operands):
        return None
    spelled = [_spelled(term, len(value.shape)) for term, value in zip(terms, operands, strict=True)]
    every = [one for names in spelled for one in names]
    n_dots = max((sum(one.startswith(".") for one in names) for names in spelled), default=0)
    if not arrow:
        once = sorted(one for one in set(every) if every.count(one) == 1 and one[0] != ".")
        wanted = "..." * bool(n_dots) + "".join(once)
    out = _spelled(wanted, n_dots + sum(letter.isalpha() for letter in wanted))
    named = [dict(zip(names, of.of(value), strict=True)) for names, value in zip(spelled, operands, strict=True)]
    if len(operands) == 1:
        return tuple(named[0][one] for one in out)
    left, right = named
    summed = [one for one in left if one in right and one not in out]
    pair = (left[summed[0]], right[summed[0]]) if len(summed) == 1 else None
    pairs = [(left.get(one), right.get(one)) for one in out]
    first, second = operands
    return _product(of, operation, first, second, pairs, pair)


def _spelled(term: str, n: int) -> list[str]:
    """The letters of an einsum's operand, with ".-1", ".-2", … for the axes of its ellipsis, counted from the end."""
    if "..." not in term:
        return list(term)
    before, after = term.split("...")
    dots = n - len(before) - len(after)
    return [*before, *(f".{at - dots}" for at in range(dots)), *after]


@RULES.add("tensordot")
def _tensordot(of: Tracker, operation: Operation) -> Axes | None:
    left, right = operation.inputs[:2]
    dims = argument(operation, 2, "dims", 2)
    a, b = of.of(left), of.of(right)
    if isinstance(dims, int):
        dims = list(range(len(a) - dims, len(a))), list(range(dims))
    gone = [
        {one % n for one in (side if isinstance(side, tuple | list) else [side])}
        for side, n in zip(dims, (len(a), len(b)), strict=True)
    ]
    pairs: list[tuple[Axis | None, Axis | None]] = [(axis, None) for at, axis in enumerate(a) if at not in gone[0]]
    pairs += [(None, axis) for at, axis in enumerate(b) if at not in gone[1]]
    both = (a[min(gone[0])], b[min(gone[1])]) if len(gone[0]) == 1 else None
    return _product(of, operation, left, right, pairs, both)


def summed_product(of: Tracker, operation: Operation, source: Value, gone: set[int]) -> Axes | None:
    """The axes of `(q[:, None] * k[None]).sum(-1)`, a product whose operands were broadcast; None for other sums."""
    multiply = source.operation
    if multiply is None or multiply.name not in ("mul", "multiply") or len(multiply.inputs) != 2 or len(gone) != 1:
        return None
    n, at = len(source.shape), next(iter(gone))
    one, other = ([*[()] * (n - len(value.shape)), *of.of(value)] for value in multiply.inputs)
    if not (one[at] and other[at]):
        return None
    pairs = [(a or None, b or None) for place, (a, b) in enumerate(zip(one, other, strict=True)) if place != at]
    first, second = multiply.inputs
    return _product(of, operation, first, second, pairs, (one[at], other[at]))
