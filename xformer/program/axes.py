"""What each axis of each tensor of a program is made of, followed from the inputs and the weights through every operation.

An axis is a product of atoms, outermost first. `x.view(batch, pos, heads, d_head)` of [batch, pos, d_model] splits the atom
d_model into heads and d_head; `flatten(0, 1)` of [batch, head, …] makes an axis of two atoms. So the order within a flattened
axis is known, whatever the sizes are, and equal sizes are never confused.

Operations without a rule keep the axes of an argument of the same shape, as elementwise functions do; otherwise the axes of
their result are unknown, and nothing is concluded from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from xformer.program.record import UNSEEN, Operation, Program, Value

Origin = Literal["input", "weight", "new", "unknown"]


@dataclass(eq=False, slots=True)
class Atom:
    """An indivisible factor of an axis, until an operation divides it."""

    size: int
    origin: Origin
    """Where it comes from: an input's axis, a weight's axis, a new tensor, or an operation without a rule."""
    name: str = ""
    """The input or weight and its axis, as "0:1" for axis 1 of input 0."""
    base: Atom | None = None
    """The atom that it was made from: as keys, or by a slice or a concatenation."""
    is_part: bool = False
    """Whether it is a divisor or a slice of its base, rather than a longer or an equal axis."""
    _divided: dict[int, tuple[Atom, Atom]] | None = field(default=None, repr=False)

    def divide(self, outer: int) -> tuple[Atom, Atom]:
        """Divide it into an outer atom of this size and an inner one. The same division gives the same atoms."""
        if self._divided is None:
            self._divided = {}
        if outer not in self._divided:
            sizes = outer, self.size // outer
            pair = tuple(Atom(size, self.origin, self.name, self, is_part=True) for size in sizes)
            self._divided[outer] = (pair[0], pair[1])
        return self._divided[outer]

    @property
    def root(self) -> Atom:
        """The input's or weight's axis that it comes from."""
        return self if self.base is None else self.base.root

    @property
    def rank(self) -> int:
        """Which of two broadcast axes describes the result: that of the inputs, else that of a weight."""
        if self.origin == "unknown":
            return 3 if self.name else 0  # unknown axes of the inputs are not those of a weight
        return {"input": 4, "weight": 2, "new": 1}[self.origin]


Axis = tuple[Atom, ...]
"""The atoms of one axis, outermost first; empty for an axis of size 1 without a meaning."""
Axes = tuple[Axis, ...]


def size_of(axis: Axis) -> int:
    return math.prod(atom.size for atom in axis)


def new_axes(shape: Sequence[int], origin: Origin = "new", name: str = "") -> Axes:
    """One atom for each axis of more than one element."""
    return tuple(
        (Atom(size, origin, f"{name}:{at}" if name else ""),) if size != 1 or origin == "input" else ()
        for at, size in enumerate(shape)
    )


def unknown_axes(value: Value) -> Axes:
    """Axes of unknown meaning."""
    return new_axes(value.shape, "unknown", "inputs" if value.is_from_inputs else "")


@dataclass(frozen=True, eq=False)
class Product:
    """A contraction of two tensors: a matrix product in any spelling."""

    operation: Operation
    left: Value
    right: Value
    shared: tuple[Atom, ...]
    """The atoms of the result that both operands have."""
    others: tuple[Atom, ...]
    """The same axes as the other operand names them."""
    rows: tuple[Atom, ...]
    """Those of the left operand alone."""
    columns: tuple[Atom, ...]
    """Those of the right operand alone."""
    contracted: tuple[Axis, Axis]
    """The summed axis, as the left and the right operand name it."""


class AxisTracker:
    """Computes the axes of every value of a program."""

    def __init__(self, program: Program) -> None:
        self.products: dict[Operation, Product] = {}
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
        return self._axes[value]

    def _results(self, operation: Operation) -> list[Axes]:
        rule = RULES.get(operation.name)
        if rule is not None:
            found = rule(self, operation)
            if found is not None:
                return found if isinstance(found, list) else [found] * len(operation.results)
        return [self._elementwise(operation, value) for value in operation.results]

    def _elementwise(self, operation: Operation, value: Value) -> Axes:
        """The axes of the arguments, broadcast; unknown where no argument has an axis of that size."""
        return self.broadcast(operation.inputs, value.shape)

    def broadcast(self, values: Sequence[Value], shape: Sequence[int]) -> Axes:
        """The axes of a result of broadcasting, which come from the inputs where any argument's do."""
        found: list[Axis] = []
        operands = [self.of(one) for one in values if len(one.shape) <= len(shape)]
        for at, size in enumerate(shape):
            fitting = [axes[at - len(shape)] for axes in operands if len(axes) >= len(shape) - at]
            fitting = [axis for axis in fitting if size_of(axis) == size]
            best = max(fitting, key=_rank, default=None)
            name = "inputs" if any(one.is_from_inputs for one in values) else ""
            found.append(best if best is not None else (Atom(size, "unknown", name),) if size != 1 else ())
        return tuple(found)


def _rank(axis: Axis) -> int:
    return max((atom.rank for atom in axis), default=-1)


def _is_divided(axis: Axis) -> bool:
    """Whether an axis divides the output of a projection, as heads do."""
    return bool(axis) and all(atom.origin == "weight" and atom.is_part for atom in axis)


def as_keys(axis: Axis) -> Axis:
    """The same axis, told apart from an equal one of the queries."""
    return tuple(Atom(atom.size, atom.origin, atom.name, atom) for atom in axis)


def part(axis: Axis, size: int) -> Axis:
    """A slice, a concatenation or another axis made from `axis`, of another size."""
    if size == size_of(axis):
        return axis
    best = max(axis, key=lambda atom: atom.rank, default=None)
    if best is None:
        return (Atom(size, "new"),) if size != 1 else ()
    return (Atom(size, best.origin, best.name, best, is_part=size < best.size),) if size != 1 else ()


def regroup(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """The axes after a reshape; None if it divides an axis in a way that mixes its atoms."""
    left = [atom for axis in axes for atom in axis if atom.size != 1]
    found: list[Axis] = []
    for size in shape:
        taken: list[Atom] = []
        while size > 1:
            if not left:
                return None
            atom = left.pop(0)
            if size % atom.size == 0:
                taken.append(atom)
                size //= atom.size
            elif atom.size % size == 0:
                outer, inner = atom.divide(size)
                taken.append(outer)
                left.insert(0, inner)
                size = 1
            else:
                return None
        found.append(tuple(taken))
    return tuple(found)


Rule = Callable[[AxisTracker, Operation], "Axes | list[Axes] | None"]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def argument(operation: Operation, at: int, name: str, default: Any = None) -> Any:
    """An argument by place or name."""
    return operation.args[at] if len(operation.args) > at else operation.kwargs.get(name, default)


def _axis(value: Value, at: int) -> int:
    return at % len(value.shape) if value.shape else 0


# Views


@_rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel")
def _reshape(of: AxisTracker, operation: Operation) -> Axes:
    source, result = operation.inputs[0], operation.result
    found = regroup(of.of(source), result.shape)
    return unknown_axes(result) if found is None else found


@_rule("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT", "H", "mH", "adjoint")
def _permute(of: AxisTracker, operation: Operation) -> Axes:
    axes = of.of(operation.inputs[0])
    numbered = torch.empty(tuple(range(len(axes))), device="meta")  # the size of each axis is its number
    order = operation.function(numbered, *operation.args[1:], **operation.kwargs).shape
    return tuple(axes[number] for number in order)


@_rule("expand", "expand_as", "broadcast_to", "broadcast_tensors")
def _expand(of: AxisTracker, operation: Operation) -> Axes | list[Axes]:
    def one(value: Value, shape: Sequence[int]) -> Axes:
        axes = of.of(value)
        axes = (*[()] * (len(shape) - len(axes)), *axes)
        return tuple(
            axis if size_of(axis) == size else (Atom(size, "new", "repeat"),)
            for axis, size in zip(axes, shape, strict=True)
        )

    if operation.name == "broadcast_tensors":
        return [one(value, made.shape) for value, made in zip(operation.inputs, operation.results, strict=True)]
    return one(operation.inputs[0], operation.result.shape)


@_rule("repeat", "tile")
def _repeat(of: AxisTracker, operation: Operation) -> Axes:
    axes, shape = of.of(operation.inputs[0]), operation.result.shape
    axes = (*[()] * (len(shape) - len(axes)), *axes)
    return tuple(
        axis if size_of(axis) == size else (Atom(size // size_of(axis), "new", "repeat"), *axis)
        for axis, size in zip(axes, shape, strict=True)
    )


@_rule("repeat_interleave")
def _repeat_interleave(of: AxisTracker, operation: Operation) -> Axes | None:
    axes, shape = of.of(operation.inputs[0]), operation.result.shape
    if len(axes) != len(shape):
        return None
    return tuple(
        axis if size_of(axis) == size else (*axis, Atom(size // max(1, size_of(axis)), "new", "repeat"))
        for axis, size in zip(axes, shape, strict=True)
    )


@_rule("getitem")
def _getitem(of: AxisTracker, operation: Operation) -> Axes | None:
    source, index = operation.args[0], operation.args[1]
    index = index if isinstance(index, tuple) else (index,)
    axes, shape = list(of.of(source)), list(operation.result.shape)
    n_used = sum(
        len(one.shape) if isinstance(one, Value) and one.dtype == torch.bool else 1
        for one in index
        if one is not None and one is not Ellipsis
    )
    full: list[Any] = []
    for one in index:
        full += [slice(None)] * (len(axes) - n_used) if one is Ellipsis else [one]
    if Ellipsis not in [one for one in index if not isinstance(one, Value)]:
        full += [slice(None)] * (len(axes) - n_used)
    found: list[Axis] = []
    if sum(isinstance(one, Value | tuple | list) for one in full) > 1:
        return None
    for one in full:
        if one is None:
            found.append(())
        elif isinstance(one, slice | tuple | list):
            axis = axes.pop(0)
            found.append(part(axis, shape[len(found)]))
        elif isinstance(one, Value):
            if one.dtype == torch.bool:
                for _ in one.shape:
                    axes.pop(0)
                found.append((Atom(shape[len(found)], "unknown"),))
            else:
                axes.pop(0)
                found += of.of(one)
        else:
            axes.pop(0)
    return tuple(found)


@_rule("select")
def _select(of: AxisTracker, operation: Operation) -> Axes:
    axes = list(of.of(operation.inputs[0]))
    axes.pop(_axis(operation.inputs[0], argument(operation, 1, "dim")))
    return tuple(axes)


@_rule("narrow", "index_select", "topk", "sort", "roll", "flip", "unfold", "pad", "argsort", "take_along_dim", "gather")
def _resized(of: AxisTracker, operation: Operation) -> list[Axes] | None:
    axes = of.of(operation.inputs[0])
    found = []
    for value in operation.results:
        if operation.name == "unfold" and len(axes) == 4 and len(value.shape) == 3:  # an image as a row of patches
            return [(axes[0], new_axes(value.shape, "weight", "patch")[1], part(axes[2], value.shape[2]))]
        if len(axes) != len(value.shape):
            return None
        found.append(tuple(part(axis, size) for axis, size in zip(axes, value.shape, strict=True)))
    return found


@_rule("split", "chunk", "tensor_split", "split_with_sizes")
def _split(of: AxisTracker, operation: Operation) -> list[Axes]:
    source = operation.inputs[0]
    at = _axis(source, argument(operation, 2, "dim", 0))
    axes, n = of.of(source), len(operation.results)
    sizes = {value.shape[at] for value in operation.results}
    found = []
    for value in operation.results:
        axis = axes[at]
        if len(sizes) == 1 and len(axis) == 1 and n > 1 and axis[0].size == n * value.shape[at]:
            atom = axis[0]  # each piece gets its own atom, as q, k and v of one projection have nothing in common
            axis = (Atom(value.shape[at], atom.origin, atom.name, atom, is_part=True),)
        else:
            axis = part(axis, value.shape[at])
        found.append((*axes[:at], axis, *axes[at + 1 :]))
    return found


@_rule("unbind")
def _unbind(of: AxisTracker, operation: Operation) -> Axes:
    source = operation.inputs[0]
    at = _axis(source, argument(operation, 1, "dim", 0))
    axes = of.of(source)
    return (*axes[:at], *axes[at + 1 :])


@_rule("cat", "concat", "concatenate", "hstack", "vstack")
def _cat(of: AxisTracker, operation: Operation) -> Axes:
    shape, values = operation.result.shape, operation.inputs
    n = len(shape)
    at = {"hstack": min(1, n - 1), "vstack": 0}.get(operation.name)
    at = argument(operation, 1, "dim", operation.kwargs.get("axis", 0)) % n if at is None else at
    found = list(of.broadcast([one for one in values if len(one.shape) == n], shape))
    parts = [of.of(one)[at] for one in values if len(one.shape) == n]
    if (
        len(parts) > 1 and parts[0] and all(axis == parts[0] for axis in parts)
    ):  # pieces of another axis, as heads, in rows
        found[at] = (Atom(len(parts), "new", "joined"), *parts[0])
        return tuple(found)
    best = max(parts, key=lambda axis: (_rank(axis), size_of(axis)), default=())
    found[at] = part(best, shape[at]) if _rank(best) >= 0 else new_axes([shape[at]])[0]
    if len({id(atom) for axis in parts for atom in axis}) > 1 and len(parts) > 1 and _rank(best) < 4:
        found[at] = (Atom(shape[at], best[0].origin if best else "new", "cat"),)
    return tuple(found)


@_rule("stack")
def _stack(of: AxisTracker, operation: Operation) -> Axes:
    shape = operation.result.shape
    at = argument(operation, 1, "dim", 0) % len(shape)
    found = list(of.broadcast(operation.inputs, [*shape[:at], *shape[at + 1 :]]))
    found.insert(at, new_axes([shape[at]], name="stack")[0])
    return tuple(found)


@_rule("view_as_complex")
def _to_complex(of: AxisTracker, operation: Operation) -> Axes:
    return of.of(operation.inputs[0])[:-1]


@_rule("view_as_real")
def _to_real(of: AxisTracker, operation: Operation) -> Axes:
    return (*of.of(operation.inputs[0]), (Atom(2, "new"),))


# Reductions and tables

_REDUCTIONS = [
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "amin",
    "prod",
    "norm",
    "logsumexp",
    "all",
    "any",
    "argmax",
    "argmin",
    "std",
    "var",
    "median",
    "nansum",
    "nanmean",
    "count_nonzero",
]


@_rule(*_REDUCTIONS)
def _reduce(of: AxisTracker, operation: Operation) -> Axes | None:
    source, result = operation.inputs[0], operation.result
    if not result.shape:
        return ()
    dims = argument(operation, 2 if operation.name == "norm" else 1, "dim", operation.kwargs.get("axis"))
    if isinstance(dims, Value) or dims is None:
        return None
    gone = {_axis(source, one) for one in (dims if isinstance(dims, tuple | list) else [dims])}
    axes = of.of(source)
    if operation.name == "sum" and len(result.shape) < len(axes):
        product = _summed_product(of, operation, source, gone)
        if product is not None:
            return product
    if len(result.shape) == len(axes):
        return tuple(() if at in gone else axis for at, axis in enumerate(axes))
    return tuple(axis for at, axis in enumerate(axes) if at not in gone)


@_rule("embedding")
def _embedding(of: AxisTracker, operation: Operation) -> Axes:
    ids, table = operation.inputs[:2]
    return (*of.of(ids), of.of(table)[-1])


@_rule("one_hot")
def _one_hot(of: AxisTracker, operation: Operation) -> Axes:
    return (*of.of(operation.inputs[0]), (Atom(operation.result.shape[-1], "new"),))


@_rule("conv1d", "conv2d", "conv3d", "unfold_image", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "interpolate")
def _convolve(of: AxisTracker, operation: Operation) -> Axes:
    source, shape = of.of(operation.inputs[0]), operation.result.shape
    channels = of.of(operation.inputs[1])[0] if "conv" in operation.name else source[-len(shape) + 1]
    n_space = len(shape) - 2 if len(source) == len(shape) else 0
    space = [part(axis, size) for axis, size in zip(source[2:], shape[2:], strict=False)][:n_space]
    return (source[0], channels, *space)


# Products


def _product(
    of: AxisTracker,
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
        pairs: For each axis of the result the axes of the two operands; None or () for one that does not have it.
        contracted: The summed axis as each operand names it; None if there are several.
    """
    shared: list[Atom] = []
    others: list[Atom] = []
    rows: list[Atom] = []
    columns: list[Atom] = []
    axes: list[Axis] = []
    for one, other in pairs:
        if one and other:
            axis, second = (one, other) if _rank(one) >= _rank(other) else (other, one)
            if _is_divided(second) and left.is_from_inputs and right.is_from_inputs:
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


@_rule("matmul", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "addmv", "addbmm")
def _matmul(of: AxisTracker, operation: Operation) -> Axes:
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


@_rule("cdist")
def _distances(of: AxisTracker, operation: Operation) -> Axes:
    left, right = operation.inputs[:2]
    a, b = of.of(left), of.of(right)
    pairs: list[tuple[Axis | None, Axis | None]] = [*zip(a[:-2], b[:-2], strict=False), (a[-2], None), (None, b[-2])]
    return _product(of, operation, left, right, pairs, (a[-1], b[-1]))


@_rule("linear")
def _linear(of: AxisTracker, operation: Operation) -> Axes:
    x, weight = operation.inputs[:2]
    rows, w = list(of.of(x)), list(of.of(weight))
    pairs: list[tuple[Axis | None, Axis | None]] = [(row, None) for row in rows[:-1]]
    return _product(of, operation, x, weight, [*pairs, *([(None, w[0])] if len(w) > 1 else [])], (rows[-1], w[-1]))


@_rule("einsum")
def _einsum(of: AxisTracker, operation: Operation) -> Axes | None:
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


@_rule("tensordot")
def _tensordot(of: AxisTracker, operation: Operation) -> Axes | None:
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


def _summed_product(of: AxisTracker, operation: Operation, source: Value, gone: set[int]) -> Axes | None:
    """The axes of `(q[:, None] * k[None]).sum(-1)`, a product whose operands were broadcast; None for other sums."""
    multiply = source.operation
    if multiply is None or multiply.name not in ("mul", "multiply") or len(multiply.inputs) != 2 or len(gone) != 1:
        return None
    n, at = len(source.shape), next(iter(gone))
    one, other = ([*[()] * (n - len(value.shape)), *of.of(value)] for value in multiply.inputs)
    if not (one[at] and other[at]):
        return None
    pairs = [pair for place, pair in enumerate(zip(one, other, strict=True)) if place != at]
    first, second = multiply.inputs
    return _product(of, operation, first, second, pairs, (one[at], other[at]))


# Attention kernels and new tensors


@_rule("scaled_dot_product_attention", "flex_attention")
def _sdpa(of: AxisTracker, operation: Operation) -> Axes:
    query, _, value = operation.inputs[:3]
    shared = of.broadcast(operation.inputs[:3], operation.result.shape)[:-2]
    return (*shared, of.of(query)[-2], of.of(value)[-1])


@_rule("multi_head_attention_forward")
def _multi_head(of: AxisTracker, operation: Operation) -> list[Axes]:
    query, key = operation.inputs[:2]
    axes = of.of(query)
    found: list[Axes] = [axes]
    for value in operation.results[1:]:
        batch = axes[1:-1]
        heads = new_axes(value.shape[len(batch) : -2], "weight", "heads")
        found.append((*batch, *heads, axes[0], as_keys(of.of(key)[0])))
    return found


@_rule(
    "arange", "ones", "zeros", "full", "empty", "rand", "randn", "eye", "linspace", "tensor", "randint", "as_tensor",
    "new_ones", "new_zeros", "new_full", "new_tensor", "new_empty", "randperm", "hann_window", "tril_indices",
    "triu_indices", "meshgrid", "outer", "ger", "cartesian_prod", "nonzero", "scalar_tensor", "logspace",
    "from_numpy", "polar",
)  # fmt: skip
def _new(of: AxisTracker, operation: Operation) -> list[Axes] | None:
    if operation.name == "polar":
        return None
    return [new_axes(value.shape) for value in operation.results]
