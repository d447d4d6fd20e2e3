"""How tensors of an attention store batch, heads and positions: the roles of their axes, and their layout.

Axes of both operands of a product are batch or heads, those of one are its positions. Heads are divisions of a projection's
output, batches come from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxtyping import Shaped
from torch import Tensor

from xformer.errors import InputError
from xformer.program.axes import Atom, Product, bases, has_inputs, rejoined, size_of
from xformer.program.axis_tracker import AxisTracker
from xformer.program.record import Value

Role = Literal["batch", "head", "query", "key", "width"]
ROLES: tuple[Role, ...] = ("batch", "head", "query", "key", "width")
PATTERN: tuple[Role, ...] = ROLES[:4]
Z: tuple[Role, ...] = ("batch", "head", "query", "width")


@dataclass(frozen=True)
class HeadLayout:
    """How a tensor of an attention stores batch, heads and positions."""

    factors: tuple[tuple[tuple[Role, int | None], ...], ...]
    """For each axis its factors, outermost first, with their sizes; None for a size that depends on the inputs."""
    result_roles: tuple[Role, ...] = PATTERN
    """The axes of `to_heads`; those that the tensor lacks have size 1, as a single query."""

    def to_heads(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "batch head ..."]:
        """The tensor as [batch, head, query, key], or [batch, head, query, width] for z."""
        sizes = self._sizes(tensor)
        apart = tensor.reshape(sizes).permute(self._order)
        shape = dict.fromkeys(self.result_roles, 1)
        for at, role in enumerate(self._roles):
            shape[role] *= sizes[at]
        return apart.reshape(list(shape.values()))

    def from_heads(self, heads: Shaped[Tensor, "batch head ..."], like: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The inverse of `to_heads`; `like` has the shape of the result."""
        sizes, order = self._sizes(like), self._order
        inverse = [order.index(at) for at in range(len(order))]
        return heads.reshape([sizes[at] for at in order]).permute(inverse).reshape(like.shape)

    def loosened(self) -> HeadLayout:
        """The layout for tensors with another number of heads, as grouped keys."""
        factors: list[tuple[tuple[Role, int | None], ...]] = [
            ((axis[0][0], None),) if len(axis) == 1 else axis for axis in self.factors
        ]
        return HeadLayout(tuple(factors), self.result_roles)

    @property
    def n_heads(self) -> int:
        """The number of heads."""
        return math.prod(size or 1 for axis in self.factors for role, size in axis if role == "head")

    @property
    def _roles(self) -> list[Role]:
        return [role for axis in self.factors for role, _ in axis]

    @property
    def _order(self) -> list[int]:
        """The factors in the order of the result's axes."""
        roles = self._roles
        return sorted(range(len(roles)), key=lambda at: ROLES.index(roles[at]))

    def _sizes(self, tensor: Tensor) -> list[int]:
        found: list[int] = []
        for axis, size in zip(self.factors, tensor.shape, strict=True):
            known = math.prod(n for _, n in axis if n is not None)
            found += [size // known if n is None else n for _, n in axis]
        if math.prod(found) != tensor.numel():
            raise InputError("The axes of its attention change with the sizes of the input.")
        return found


class Operand(NamedTuple):
    """Queries, keys or values in a product."""

    value: Value
    layout: HeadLayout
    """[batch, head, pos, width]; grouped keys and values have fewer heads."""


class UnreadableError(Exception):
    """The true reason for which an attention cannot be read."""


class OtherAxisError(UnreadableError):
    """An axis of the scores or weights comes from another tensor than the queries and keys."""


class Roles:
    """The roles of the atoms of one attention."""

    def __init__(self, axes: AxisTracker, product: Product) -> None:
        self._axes, self.keys = axes, "column"
        rows, columns = product.rows, product.columns
        grouped = [side for side in (rows, columns) if has_inputs(side)]
        heads = [atom for side in grouped for atom in side if atom.origin not in ("input", "new")]
        self._rows = {id(atom) for atom in rows if atom not in heads}  # heads of one group share their keys
        self._columns = {id(atom) for atom in columns if atom not in heads}
        self._shared = {id(atom): atom for atom in (*product.shared, *heads)}
        self._check([atom for atom in product.shared if atom.origin == "input"])

    @classmethod
    def of_kernel(cls, axes: AxisTracker, batch: Sequence[Atom], rows: Sequence[Atom]) -> Roles:
        found = cls.__new__(cls)
        found._axes, found.keys = axes, "column"
        found._rows, found._columns, found._shared = {id(one) for one in rows}, set(), {}
        found._check(list(batch))
        return found

    def _check(self, batches: Sequence[Atom]) -> None:
        if any(atom.is_part for atom in batches):
            raise UnreadableError("it attends within windows or groups of positions, so no single matrix shows it")
        if len(batches) > 1:
            raise UnreadableError("it attends along one of several axes of positions, so no single matrix shows it")
        self.batch = batches[0] if batches else None

    def of(self, atom: Atom) -> str | None:
        """ "row", "column", "batch" or "head"; None for an atom of something else."""
        for base in bases(atom):
            if id(base) in self._columns:
                return "column"
            if id(base) in self._rows:
                return "row"
            if id(base) in self._shared:
                return "batch" if base.origin == "input" else "head"
        return None

    def queries(self, product: Product) -> tuple[Atom, ...]:
        """The atoms of the product's queries."""
        return product.columns if self.keys == "row" else product.rows

    def sliced(self, product: Product) -> tuple[Role, ...]:
        """Which of query and key are a slice of an input's positions."""
        parts = [atom for atom in (*product.rows, *product.columns) if any(map(_is_slice, bases(atom)))]
        return tuple(dict.fromkeys(role for atom in parts if (role := self.find(atom)) is not None))

    def find(self, atom: Atom) -> Role | None:
        of = self.of(atom)
        if of in ("row", "column"):
            return "key" if of == self.keys else "query"
        return of  # type: ignore[return-value]

    def role(self, atom: Atom) -> Role:
        found = self.find(atom)
        if found is None:
            name = atom.root.name.rpartition(":")[0] if atom.root.origin == "weight" else ""
            source = name or "a new tensor"
            raise OtherAxisError(f"an axis of its scores or weights is that of {source}, not of queries, keys or heads")
        return found

    def layout(self, value: Value, extra: Mapping[int, Role] | None = None) -> HeadLayout:
        """The layout of scores or weights; with the roles of further atoms, by their id, that of z."""
        factors = []
        for axis in self._axes.of(value):
            found = []
            for atom in axis:
                if atom.size == 1 and self.find(atom) is None:
                    continue  # it may be any axis, as the single text of a mask
                role = self.role(atom) if extra is None else self.find(atom) or extra.get(id(atom)) or "width"
                if atom.origin == "unknown":
                    raise UnreadableError(f"what the axes mean after {atom.name or 'an index'} is not known")
                if found and found[-1][0] == role and role in ("query", "key", "width"):
                    continue  # rows and columns of an image are one axis of positions
                is_free = atom.origin == "input" or role in ("query", "key", "width")
                found.append((role, None if is_free else atom.size))
            if sum(size is None for _, size in found) > 1:
                raise UnreadableError("one axis holds several sizes that depend on the input")
            factors.append(tuple(found))
        return HeadLayout(tuple(factors), PATTERN if extra is None else Z)

    def heads(self, value: Value, product: Product | None = None) -> list[Atom]:
        """The heads of scores or weights in their order; with the product with the values, those of its result."""
        known: dict[int, list[Atom]] = {}
        for one, other in _aligned(product.shared, product.others) if product is not None else ():
            group = one if all(map(self.find, one)) else other
            known |= {id(atom): [] for atom in one} | {id(one[0]): group}
        atoms = [each for axis in self._axes.of(value) for atom in axis for each in known.get(id(atom), [atom])]
        return rejoined(atom for atom in atoms if self.find(atom) == "head")

    def operand(self, product: Product, side: int, own: Role, scores: Value) -> Operand | None:
        """One operand of a product. Its axes that the other lacks have the role `own`, unless they are heads."""
        value, summed = (product.left, product.right)[side], {id(atom) for atom in product.contracted[side]}
        sides = {id(atom): [atom] for atom in product.shared if self.find(atom)}
        for one, other in _aligned(product.shared, product.others):
            known = one if all(map(self.find, one)) else other
            sides |= {id(atom): known for atom in (*one, *other)}
        alone = {id(of): [atom] for atom in (product.rows, product.columns)[side] for of in (atom, atom.base or atom)}
        sides |= alone
        factors, heads = [], list[Atom]()
        for axis in self._axes.of(value):
            found: list[tuple[Role, int | None]] = []
            for atom in axis:
                known = sides.get(id(atom), [])
                role = self.find(known[0]) if known else None
                if atom.size == 1 and not known:
                    continue
                if id(atom) in summed:
                    role = "key" if own == "width" else "width"
                elif id(atom) in alone and role != "head":
                    role = own
                elif role not in ("batch", "head") or len({*map(self.find, known)}) > 1:
                    return None
                elif role == "head":
                    heads += known
                if found and found[-1][0] == role and role in ("query", "key", "width"):
                    continue
                found.append((role, atom.size if role == "head" else None))
            if sum(size is None for _, size in found) > 1:
                return None
            factors.append(tuple(found))
        order = [id(base) for axis in self._axes.of(scores) for atom in axis for base in bases(atom)]
        at = [order.index(id(one)) if id(one) in order else -1 for one in heads]
        if at != sorted(at) or -1 in at:
            return None
        return Operand(
            value, HeadLayout(tuple(factors), ("batch", "head", "query" if own == "query" else "key", "width"))
        )


def _aligned(one: Sequence[Atom], other: Sequence[Atom]) -> Iterator[tuple[list[Atom], list[Atom]]]:
    """The atoms of two descriptions of the same axes, in groups of equal size; atoms of size 1 are left out."""
    left, right = ([atom for atom in side if atom.size != 1] for side in (one, other))
    while left and right:
        pair = [left.pop(0)], [right.pop(0)]
        while (sizes := (size_of(tuple(pair[0])), size_of(tuple(pair[1]))))[0] != sizes[1]:
            rest = left if sizes[0] < sizes[1] else right
            if not rest:
                return
            pair[0 if rest is left else 1].append(rest.pop(0))
        yield pair


def _is_slice(atom: Atom) -> bool:
    return atom.origin == "input" and atom.is_part and not atom.is_divisor
