"""The rotations of queries and keys by their positions, recovered from the recorded numbers before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.doctor.formulas.block import BlockReader
from xformer.doctor.formulas.flow import CASTS, COPIES, Flow, called_with, is_stream
from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.numbers import TIMES, constants_before, factor_of
from xformer.program.attention import FoundAttention
from xformer.program.record import Operation, Value

_JOINS = {"cat", "concat", "stack"}
_REPEATS = {"repeat_interleave", "repeat", *_JOINS}
_USUAL = "q and k rotated by the same angles, v not"
_SKEWED = "x₁·a + x₂·b and x₁·c + x₂·d, where a, b, c and d are no cos and sin of one angle"
_ROTATED = "x₁·cos − x₂·sin and x₂·cos + x₁·sin for each pair"


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of dimensions by angles that are linear in the position.

    Attributes:
        pairs: "halves" for (i, i + width / 2), "neighbours" for (2i, 2i + 1), "reordered" for neighbours that are then halves.
        width: The number of dimensions that are rotated.
        first: The position of the first token; None if it is no whole number from 0 to 15.
        base: The base of the geometric frequencies; None if they are no such frequencies.
        sign: 1 if later positions are rotated from the first dimension of a pair to the second, else −1.
    """

    pairs: str
    width: int
    first: int | None
    base: float | None
    sign: int

    def agrees(self, other: Rotation) -> bool:
        """Whether another one has the same angles, as far as they are known."""
        is_same = (self.pairs, self.width, self.sign) == (other.pairs, other.width, other.sign)
        known = ((self.first, other.first), (self.base, other.base))
        return is_same and all(a is None or b is None or math.isclose(a, b, rel_tol=0.02) for a, b in known)


@dataclass(frozen=True, eq=False)
class _Turned:
    """What happens to queries, keys or values between their projection and their product."""

    kind: str
    """"rotated", "mixed" for tables of other pairs than those that are rotated, "skewed" for no rotation, or "plain"."""
    rotation: Rotation | None = None
    operation: Operation | None = None
    """The operation that computes the rotated numbers."""


class RotaryReader:
    """Reads the rotations of one program."""

    def __init__(self, flow: Flow, block: BlockReader) -> None:
        self._flow, self._block = flow, block
        self._normed = {flow.root(norm.result) for norm in block.norms}

    def part(self, found: FoundAttention) -> Formula | None:
        """The rotation of one attention; None if there is none, or if it cannot be read."""
        if found.kernel is not None:
            values = dict(zip("qkv", found.kernel.inputs[:3], strict=False))
            if found.kernel.name == "multi_head_attention_forward":
                return None
        else:
            values = {name: operand.value for name, operand in found.operands.items()}
        at = found.first
        turned = {name: one for name, value in values.items() if (one := self._turned(value)) is not None}
        kinds = {name: one.kind for name, one in turned.items()}
        mixed = next((one for one in turned.values() if one.kind == "mixed"), None)
        if mixed is not None:
            return part_of("rotary", "cos and sin of other pairs", "rotary_pairs_mixed", mixed.operation, _USUAL)
        skewed = next((one for one in turned.values() if one.kind == "skewed"), None)
        if skewed is not None:
            return part_of("rotary", _SKEWED, "rotary_no_rotation", skewed.operation, _ROTATED)
        if (v := turned.get("v")) is not None and v.operation is not None:
            line = called_with(v.operation, at)
            return part_of("rotary", "v rotated", "rotary_on_values", v.operation, _USUAL, line)
        is_self = len({frozenset(self._block.inputs_of(value)) for value in values.values()}) == 1
        for one, other, cause in ("q", "k", "rotary_on_queries_only"), ("k", "q", "rotary_on_keys_only"):
            by = turned[one].operation if one in turned else None
            if (kinds.get(one), kinds.get(other)) == ("rotated", "plain") and is_self and by is not None:
                beside = self._beside(by, values[other], at)
                line = called_with(by, at) if beside is None else beside.line
                return part_of("rotary", f"{one} rotated, {other} not", cause, by, _USUAL, line)
        q, k = turned.get("q"), turned.get("k")
        if q is None or k is None or q.rotation is None or k.rotation is None or k.operation is None:
            return None
        if not q.rotation.agrees(k.rotation):
            if not is_self:
                return None
            is_reversed = replace(q.rotation, sign=-q.rotation.sign).agrees(k.rotation)
            cause = "rotary_directions" if is_reversed else "rotary_differs"
            formula = (
                "q rotated by θ, k by −θ" if is_reversed else f"q by {_words(q.rotation)}; k by {_words(k.rotation)}"
            )
            return part_of("rotary", formula, cause, k.operation, _USUAL)
        return part_of("rotary", f"q and k rotated by {_words(q.rotation)}", "", q.operation, _USUAL)

    def _turned(self, value: Value) -> _Turned | None:
        """How a value was rotated; None if that cannot be read."""
        while (operation := value.operation) is not None and operation.inputs:
            number = factor_of(operation) if operation.name in TIMES else None
            if number is None and operation.name not in COPIES:
                break
            value = operation.inputs[0] if number is None else number.other
        if self._is_projected(value):
            return _Turned("plain")
        before = self._before(value)
        if before is None or before.tensor is None or value.tensor is None or operation is None:
            return None
        x, y = (_real(one) for one in (before.tensor, value.tensor))
        axes = self._flow.axes.of(before)
        places = [
            at
            for at, axis in enumerate(axes)
            if len(axis) == 1 and axis[0].size > 1 and axis[0].root.name.endswith(":1")
        ]
        if x.shape != y.shape or len(places) != 1 or places[0] >= x.dim() - 1 or x.shape[places[0]] < 3:
            return None
        x, y = (one.movedim(places[0], -2).flatten(0, -3) for one in (x, y))
        rotation = _rotation(x, y)
        if rotation is not None:
            return _Turned("rotated", rotation, operation)
        x, y = _changed(x, y)
        tables = [one for one in self._tables(value, before) if one.shape.numel() == x.shape[1] * x.shape[2]]
        mixed = _mixed(x, y, [t.double().reshape(x.shape[1:]) for one in tables if (t := one.tensor) is not None])
        if mixed is None:
            wrong = _skewed(x, y)
            return None if wrong is None else _Turned("skewed", None, self._skewing(value, before, wrong))
        made = {
            by for table in tables if table.operation for by in (table.operation, *constants_before(table.operation))
        }
        turning = {
            by for one in self._flow.before([value], without=before) if (by := one.operation) and one.is_from_inputs
        }
        by = [one for one in made if one.name in _REPEATS] if mixed else [one for one in turning if one.name in COPIES]
        return _Turned("mixed", None, min(by, key=lambda one: one.index, default=operation))

    def _beside(self, operation: Operation, value: Value, product: Operation) -> Operation | None:
        """The operation that copies a value in the function that rotates another; None if the attention's does both."""
        functions, own = ([(line.file, line.function) for line in one.callers[:1]] for one in (operation, product))
        if functions == own:
            return None
        while (by := value.operation) is not None and by.name in COPIES:
            if by.name not in CASTS and [(line.file, line.function) for line in by.callers[:1]] == functions:
                return by
            value = by.inputs[0]
        return None

    def _skewing(self, value: Value, before: Value, wrong: int) -> Operation | None:
        """The operation that makes no rotation: a table that stands for both cos and sin, or the sum with another sign."""
        tables = [one for one in self._tables(value, before) if one.operation is not None and one.tensor is not None]
        for i, table in enumerate(tables):
            if any(_is_equal(table.tensor, one.tensor) and one.operation is not table.operation for one in tables[:i]):
                return max((one for one in tables if _is_equal(one.tensor, table.tensor)), key=_index).operation
        made = [one for one in self._flow.before([value], without=before) if one.is_from_inputs]
        sums = sorted((one for one in made if one.operation and one.operation.name in ("add", "sub")), key=_index)
        joined = [
            one for one in made if one.operation and one.operation.name in _REPEATS and _index(one) < _index(sums[0])
        ]
        if len(sums) > 1 or wrong == 2:
            return sums[min(wrong, len(sums) - 1)].operation
        return (joined or sums or [value])[0].operation

    def _is_projected(self, value: Value) -> bool:
        """Whether a value is a part of what a projection or a norm returned, with a bias."""
        for _ in range(20):
            operation = value.operation
            if value in self._normed or (operation is not None and self._flow.projected(operation) is not None):
                return True
            if operation is None:
                return False
            if operation.name in _JOINS:  # of what is rotated and the rest
                return all(self._is_projected(one) for one in operation.inputs)
            inner = operation.inputs[0] if operation.name in COPIES else self._flow.rescaled(operation)
            if inner is None or (operation.name in TIMES and factor_of(operation) is None):
                return False
            value = inner
        return False

    def _before(self, value: Value) -> Value | None:
        """The value from which alone another was computed, with nothing but copies between it and its projection."""
        left = {value}
        for _ in range(60):
            last = max(left, key=lambda one: -1 if one.operation is None else one.operation.index)
            if last.operation is None:
                return None
            left.remove(last)
            left |= {one for one in last.operation.inputs if self._is_of_projection(one)}
            if len(left) == 1 and self._is_projected(next(iter(left))):
                return left.pop()
            if not left:
                return None
        return None

    def _is_of_projection(self, value: Value, depth: int = 0) -> bool:
        """Whether a value is computed from a projection, unlike angles that depend on given positions."""
        operation = value.operation
        if not is_stream(value) or operation is None or depth > 30:
            return False
        if value in self._normed or self._has_features(operation):
            return True
        return any(self._is_of_projection(one, depth + 1) for one in operation.inputs)

    def _has_features(self, operation: Operation) -> bool:
        given = self._flow.projected(operation)
        return given is not None and all(atom.origin != "input" for atom in self._flow.axes.of(given)[-1])

    def _tables(self, value: Value, before: Value) -> list[Value]:
        """The tables that multiply a value, or parts of it, on its way to another."""
        found = list[Value]()
        for one in self._flow.before([value], without=before):
            if one.operation is not None and one.operation.name in TIMES and self._is_of_projection(one):
                found += [other for other in one.operation.inputs if not self._is_of_projection(other)]
        return [one for one in found if one.tensor is not None and one.shape.numel() > 1]


def _changed(x: Float[Tensor, "row pos width"], y: Float[Tensor, "row pos width"]) -> tuple[Tensor, Tensor]:
    """The first or last dimensions that are not the same, an even number of them."""
    same = (x == y).flatten(0, -2).all(dim=0).tolist()
    start, end = (same.index(False), len(same) - same[::-1].index(False)) if False in same else (0, len(same))
    end += (end - start) % 2
    part = slice(start, end) if end <= len(same) else slice(start - 1, len(same))
    return x[..., part], y[..., part]


def _real(x: Tensor) -> Float[Tensor, "*batch width"]:
    """Numbers, complex numbers or pairs of numbers, as adjacent numbers."""
    x = torch.view_as_real(x) if x.is_complex() else x
    return (x.flatten(-2) if x.shape[-1] == 2 else x).double()


def _index(value: Value) -> int:
    return -1 if value.operation is None else value.operation.index


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)


def _words(rotation: Rotation) -> str:
    """The angles and the pairs of a rotation."""
    width = rotation.width
    at = f"(pos + {rotation.first})" if rotation.first else "pos"
    is_known = rotation.first is not None and rotation.base is not None
    angle = f"{at} / {rotation.base:.6g}^(2i/{width})" if is_known else "their positions"
    pairs = f"(i, i + {width // 2})" if rotation.pairs == "halves" else "(2i, 2i + 1)"
    return f"{angle}, in pairs {pairs}"


def _arranged(x: Float[Tensor, "*batch width"], pairs: str) -> Tensor:
    """Pairs as complex numbers, [*batch, width / 2]."""
    first, second = x.chunk(2, dim=-1) if pairs == "halves" else (x[..., 0::2], x[..., 1::2])
    return torch.complex(first, second)


def _rotation(x: Float[Tensor, "row pos width"], y: Float[Tensor, "row pos width"]) -> Rotation | None:
    """The rotation that turns x into y; None if there is none."""
    size, d = float(x.abs().max()), x.shape[-1]
    if size == 0 or not (x.isfinite().all() and y.isfinite().all()):
        return None
    same = (x == y).flatten(0, -2).all(dim=0)  # [width], of dimensions that are not rotated
    for width in range(2, d + 1, 2):
        for start in {0, d - width}:
            if not (same[:start].all() and same[start + width :].all()):
                continue
            part = slice(start, start + width)
            for pairs, after in (("halves", "halves"), ("neighbours", "neighbours"), ("reordered", "halves")):
                turned = _arranged(x[..., part], "neighbours" if pairs == "reordered" else pairs)
                found = _angles(turned, _arranged(y[..., part], after), pairs, width)
                if found is not None:
                    return found
    return None


def _angles(x: Tensor, y: Tensor, pairs: str, width: int) -> Rotation | None:
    """The angles by which the complex numbers x [row, pos, pair] are turned into y; None if they are not turned."""
    scale = (y * x.conj()).sum(dim=0) / (x * x.conj()).sum(dim=0).real.clamp(min=1e-30)  # [pos, pair]
    length = scale.abs()
    if float((y - scale * x).abs().max()) > CLOSE * float(y.abs().max()):
        return None
    if float((length - length.mean()).abs().max()) > CLOSE:
        return None
    step = scale[1:] * scale[:-1].conj()
    step = step / step.abs()  # [pos - 1, pair]
    rate = step.mean(dim=0)
    if float((step - rate).abs().max()) > 10 * CLOSE or float((rate - 1).abs().max()) < 10 * CLOSE:
        return None
    frequency = rate.angle().abs()
    start = scale[0] / length[0]
    sign = 1 if float(rate.angle()[0]) > 0 else -1
    first = next(
        (
            n
            for n in range(16)
            if float((start - torch.polar(torch.ones_like(frequency), sign * n * frequency)).abs().max()) < 10 * CLOSE
        ),
        None,
    )
    return Rotation(pairs, width, first, _base(frequency, width), sign)


def _base(frequency: Float[Tensor, " pair"], width: int) -> float | None:
    """The base of frequencies base^(−2i / width); None if they are others."""
    if len(frequency) < 2 or abs(float(frequency[0]) - 1) > CLOSE or not (frequency > 0).all():
        return None
    fast = frequency[frequency > 1e-3]  # slower ones turn too little to be exact
    if len(fast) < 2:
        return None
    rate = float(-fast.log().diff().mean())
    base = math.exp(rate * width / 2)
    rounded = float(f"{base:.2g}")
    base = rounded if math.isclose(base, rounded, rel_tol=0.02) else base
    expected = base ** (-2 * torch.arange(len(frequency), dtype=frequency.dtype, device=frequency.device) / width)
    return base if bool(((frequency - expected).abs() <= 0.01 * expected + 1e-6).all()) else None


def _skewed(x: Float[Tensor, "row pos width"], y: Float[Tensor, "row pos width"]) -> int | None:
    """Which of the two sums of a pair has another sign, if y mixes pairs of x by numbers of each position but rotates none.

    Those that do not change are left out before (`_changed`). 2 if both sums have other numbers; None if y is something else.
    """
    if x.shape[0] < 3 or x.shape[-1] % 2 or not (x.isfinite().all() and y.isfinite().all() and x.any()):
        return None
    for pairs, after in (("halves", "halves"), ("neighbours", "neighbours"), ("neighbours", "halves")):
        given, made = (
            torch.view_as_real(_arranged(one, of)).permute(1, 2, 0, 3) for one, of in ((x, pairs), (y, after))
        )  # [pos, pair, row, 2]
        matrix = torch.linalg.lstsq(given, made).solution  # [pos, pair, 2, 2], y = x · matrix
        if float((given @ matrix - made).abs().max()) > CLOSE * float(y.abs().max()):
            continue
        (a, c), (b, e) = matrix[1:].permute(2, 3, 0, 1)  # y₁ = a·x₁ + b·x₂, y₂ = c·x₁ + e·x₂
        size = float(matrix.abs().max())
        is_mixed = bool((b.abs() > CLOSE * size).any() and (c.abs() > CLOSE * size).any())
        if not is_mixed or float((matrix - matrix[:1]).abs().max()) < 10 * CLOSE * size:
            return None
        turned = torch.complex(a, c)
        is_turned = max(float((a - e).abs().max()), float((b + c).abs().max())) < 10 * CLOSE * size
        is_mirrored = max(float((a + e).abs().max()), float((b - c).abs().max())) < 10 * CLOSE * size
        angle = (turned / turned.abs().clamp(min=1e-30)).square()
        is_still = float((angle - angle[:1]).abs().max()) < 100 * CLOSE
        length = turned.abs().clamp(min=1e-30).log().diff(dim=0)  # the same from position to position in xPos
        is_even = float((length - length[:1]).abs().max()) < 100 * CLOSE
        if (is_turned or is_mirrored) and is_even and not is_still:
            return None
        return 2 if is_turned or is_mirrored else 0 if float(b[0, 0]) > 0 else 1
    return None


def _mixed(
    x: Float[Tensor, "row pos width"], y: Float[Tensor, "row pos width"], tables: Sequence[Tensor]
) -> str | None:
    """How x was turned into y with tables of other pairs: "halves", "neighbours", or "" for neither; None if it was not."""
    first, second, even, odd = *x.chunk(2, dim=-1), x[..., 0::2], x[..., 1::2]
    turned = {
        "halves": torch.cat([-second, first], dim=-1),
        "neighbours": torch.stack([-odd, even], dim=-1).flatten(-2),
        "": torch.cat([-odd, even], dim=-1),
    }
    for cos in tables:
        for sin in tables:
            if cos is sin or float((cos.square() + sin.square() - 1).abs().max()) > CLOSE:
                continue
            own = {name for name in ("halves", "neighbours") if all(_is_repeated(one, name) for one in (cos, sin))}
            for name, other in turned.items():
                sums = (x * cos + sign * other * sin - y for sign in (1, -1))
                if (
                    own
                    and name not in own
                    and any(float(one.abs().max()) <= CLOSE * float(y.abs().max()) for one in sums)
                ):
                    return name
    return None


def _is_repeated(table: Float[Tensor, "pos width"], pairs: str) -> bool:
    """Whether a table has the same number at both dimensions of each pair."""
    return torch.equal(*(table.chunk(2, dim=-1) if pairs == "halves" else (table[..., 0::2], table[..., 1::2])))
