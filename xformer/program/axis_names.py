"""Names for the axes of a program's tensors: batch, head, query, key, pos, d_head, d_model, d_ff and vocab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xformer.program.attention import FoundAttention
from xformer.program.axes import Atom, Axis, size_of
from xformer.program.axis_tracker import AxisTracker
from xformer.program.heads import HeadLayout
from xformer.program.record import Address, Program, Value


class AxisNames:
    """Names axes by what the attention of a program makes of them, and by the widths of its projections.

    Args:
        program: The recorded pass.
        axes: The atoms of its axes.
        found: Its attention.
    """

    def __init__(self, program: Program, axes: AxisTracker, found: Sequence[FoundAttention]) -> None:
        self._program, self._axes = program, axes
        self._by_atom: dict[int, str] = {}
        for one in found:
            self._name_attention(one)
        self._widths = self._name_widths()

    def of_results(self) -> dict[tuple[Address, int], tuple[str, ...]]:
        """The names of the axes of every result."""
        return {
            (operation.address, at): self.of(value)
            for operation in self._program.operations
            for at, value in enumerate(operation.results)
        }

    def of(self, value: Value) -> tuple[str, ...]:
        """The names of one value's axes."""
        axes = self._axes.of(value)
        is_pattern = any(self._named(atom) == "key" for axis in axes for atom in axis)
        return tuple(self._axis(axis, is_pattern=is_pattern) for axis in axes)

    def _axis(self, axis: Axis, *, is_pattern: bool) -> str:
        if not axis:
            return "1"
        size = size_of(axis)
        parts = [self._atom(atom, is_pattern=is_pattern) for atom in axis]
        if size in self._widths and not any(part in ("batch", "head", "pos", "query", "key") for part in parts):
            return self._widths[size]
        return "·".join(parts)

    def _atom(self, atom: Atom, *, is_pattern: bool) -> str:
        if atom.origin == "unknown":
            return "?"
        name = self._named(atom)
        if name == "query" and not is_pattern:
            return "pos"
        if name:
            return name
        return str(atom.size) if atom.origin == "input" else self._widths.get(atom.size, str(atom.size))

    def _named(self, atom: Atom) -> str:
        one: Atom | None = atom
        while one is not None:
            if id(one) in self._by_atom:
                return self._by_atom[id(one)]
            one = one.base
        return ""

    def _name_attention(self, found: FoundAttention) -> None:
        if found.kernel is not None:
            self._name_axes(found.kernel.inputs[0], found.layout)
            return
        for product in (found.product, found.values):
            assert product is not None
            for atom in (*product.shared, *product.others):
                name = "head" if atom.origin != "input" else "batch"
                for one in (atom, atom.root) if name == "batch" else (atom,):
                    self._by_atom.setdefault(id(one), name)
        self._name_axes(found.scores, found.layout)
        assert found.product is not None
        assert found.values is not None
        for axis in found.product.contracted:
            for atom in axis:
                self._by_atom.setdefault(id(atom), "d_head")
        for axis in self._axes.of(found.z):
            for atom in axis:
                if not self._named(atom) and atom.origin != "input":
                    same = atom.base if atom.base is not None and not atom.is_part else atom  # of the values themselves
                    self._by_atom[id(atom)] = self._by_atom[id(same)] = "d_head"

    def _name_axes(self, value: Value, layout: HeadLayout) -> None:
        """Name queries and keys, and the positions and the batch of the inputs that they come from."""
        for axis, factors in zip(self._axes.of(value), layout.factors, strict=True):
            for atom, (role, _) in zip(axis, factors, strict=False):
                if role in ("query", "key", "batch"):
                    self._by_atom.setdefault(id(atom), role)
                    if atom.root.origin == "input" and atom.root is not atom:
                        self._by_atom.setdefault(id(atom.root), "query" if role == "key" else role)

    def _name_widths(self) -> dict[int, str]:
        """The names of widths by their size, from the projections: d_model is read and written by most, d_ff lies between."""
        reads: Counter[int] = Counter()
        writes: Counter[int] = Counter()
        for operation in self._program.operations:
            if operation.name in ("linear", "addmm"):
                reads[operation.inputs[-2 if operation.name == "addmm" else 0].shape[-1]] += 1
                writes[operation.result.shape[-1]] += 1
        both = {size: min(reads[size], writes[size]) for size in reads if size in writes}
        found: dict[int, str] = {}
        tables = [one for one in self._program.operations if one.name == "embedding"]
        d_model = tables[0].result.shape[-1] if tables else max(both, key=lambda size: both[size], default=0)
        for size in both:
            if size > d_model > 0:
                found[size] = "d_ff"
        if d_model:
            found[d_model] = "d_model"
        for table in tables[:1]:
            n = table.inputs[1].shape[0]
            found.setdefault(n, "vocab")
        return found
