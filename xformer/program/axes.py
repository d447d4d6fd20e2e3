"""What each axis of each tensor of a program is made of, followed from the inputs and the weights through every operation.

An axis is a product of atoms, outermost first. `x.view(batch, pos, heads, d_head)` of [batch, pos, d_model] splits the atom
d_model into heads and d_head; `flatten(0, 1)` of [batch, head, …] makes an axis of two atoms. So the order within a flattened
axis is known, whatever the sizes are, and equal sizes are never confused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from xformer.program.record import Operation, Value

Origin = Literal["input", "weight", "new", "unknown"]


@dataclass(eq=False, slots=True)
class Atom:
    """An indivisible factor of an axis, until an operation divides it."""

    size: int
    origin: Origin
    """Where it comes from: an input's axis, a weight's axis, a new tensor, or an operation without a rule."""
    name: str = ""
    """The input or weight and its axis, as "0:1" for axis 1 of input 0; the operation and line after which it is unknown."""
    base: Atom | None = None
    """The atom that it was made from: as keys, or by a slice or a concatenation."""
    is_part: bool = False
    """Whether it is a divisor or a slice of its base, rather than a longer or an equal axis."""
    is_divisor: bool = False
    _divided: dict[int, tuple[Atom, Atom]] | None = field(default=None, repr=False)

    def divide(self, outer: int) -> tuple[Atom, Atom]:
        """Divide it into an outer atom of this size and an inner one. The same division gives the same atoms."""
        if self._divided is None:
            self._divided = {}
        if outer not in self._divided:
            sizes = outer, self.size // outer
            pair = tuple(Atom(size, self.origin, self.name, self, is_part=True, is_divisor=True) for size in sizes)
            self._divided[outer] = (pair[0], pair[1])
        return self._divided[outer]

    def is_divided_into(self, outer: Atom, inner: Atom) -> bool:
        """Whether a division of it gave these two atoms."""
        return self._divided is not None and (outer, inner) in self._divided.values()

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
    name = unknown_name(value)
    return tuple((Atom(size, "unknown", name),) if size != 1 else () for size in value.shape)


def unknown_name(value: Value) -> str:
    """The operation and the line that computed a value from the inputs; "" for other values."""
    operation = value.operation
    if operation is None or not value.is_from_inputs:
        return "inputs" if value.is_from_inputs else ""
    return operation.name if operation.line is None else f"{operation.name} ({operation.line})"


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


def rank_of(axis: Axis) -> int:
    return max((atom.rank for atom in axis), default=-1)


def bases(atom: Atom) -> Iterator[Atom]:
    """An atom and what it was made from, nearest first."""
    one: Atom | None = atom
    while one is not None:
        yield one
        one = one.base


def has_inputs(atoms: Sequence[Atom]) -> bool:
    return any(atom.origin == "input" for atom in atoms)


def as_keys(axis: Axis) -> Axis:
    """The same axis, distinguished from an equal one of the queries."""
    return tuple(Atom(atom.size, atom.origin, atom.name, atom) for atom in axis)


def rejoined(atoms: Iterable[Atom]) -> list[Atom]:
    """Atoms, with those in place of their divisors that stand in order. Atoms of size 1 are left out."""
    found: list[Atom] = []
    for atom in atoms:
        if atom.size == 1:
            continue
        while atom.base is not None and not atom.is_part and atom.base.size == atom.size:  # as keys
            atom = atom.base
        found.append(atom)
        while len(found) > 1 and (whole := found[-1].base) is not None and whole.is_divided_into(*found[-2:]):
            found[-2:] = [whole]
    return found


def part(axis: Axis, size: int) -> Axis:
    """A slice, a concatenation or another axis made from `axis`, of another size."""
    if size == size_of(axis):
        return axis
    best = max(axis, key=lambda atom: atom.rank, default=None)
    if best is None:
        return (Atom(size, "new"),) if size != 1 else ()
    if best.base is not None and best.base.size == size < best.size:
        return (best.base,)  # what it was lengthened from, as the filled part of a buffer
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


class Tracker(Protocol):
    """What a rule asks: the axes of a value, and those of several that are broadcast."""

    products: dict[Operation, Product]

    def of(self, value: Value) -> Axes: ...

    def broadcast(self, values: Sequence[Value], shape: Sequence[int], unknown: str = "inputs") -> Axes: ...


Rule = Callable[[Any, Operation], "Axes | list[Axes] | None"]
"""Computes the axes of an operation's results; None if it does not know them."""
R = TypeVar("R", bound=Rule)


class RuleTable(dict[str, Rule]):
    """The rules by the names of the operations."""

    def add(self, *names: str) -> Callable[[R], R]:
        """A decorator that adds a rule for these operations."""

        def adding(rule: R) -> R:
            self.update(dict.fromkeys(names, rule))
            return rule

        return adding


def argument(operation: Operation, at: int, name: str, default: Any = None) -> Any:
    """An argument by place or name."""
    return operation.args[at] if len(operation.args) > at else operation.kwargs.get(name, default)


def axis_at(value: Value, at: int) -> int:
    return at % len(value.shape) if value.shape else 0
