"""The scale, the softmax and the projections of one attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from xformer.doctor.formulas.flow import SAME_NUMBERS, Flow, called_with
from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.heads import (
    RESHAPES,
    equal_heads,
    first_of,
    groups_of,
    heads_of,
    is_projection,
    modules_of,
)
from xformer.doctor.formulas.masks import mask_of, mask_of_encoder, product_of
from xformer.doctor.formulas.numbers import OVER, TIMES, factor_of
from xformer.doctor.formulas.positions import linear_bias
from xformer.doctor.watch import Watched, read_layer
from xformer.program.attention import FoundAttention
from xformer.program.axes import Axis, argument
from xformer.program.record import Operation, SourceLine, Value


@dataclass(frozen=True, eq=False)
class _Scaled:
    """A value as a multiple of what a projection returned."""

    source: Operation
    factor: float = 1.0
    by: tuple[Operation, ...] = ()
    """The operations that multiply or divide by a number."""
    is_learned: bool = False
    """Whether a weight is one of the numbers."""
    share: float = 1.0
    """The part of the projection's features that it has: a slice has less than 1."""
    slice: Value | None = None
    """The first slice of what the projection returned."""


_PLURALS = {"key": "keys", "query": "queries", "head": "heads"}
_NORMS = {"layer_norm", "rms_norm"}
_ADDS = {
    "add", "sub", "masked_fill", "where", "view", "reshape", "unsqueeze", "squeeze", "expand", "flatten", "unflatten",
    "transpose", "permute", "contiguous", "clone", "to", "float", "type_as", "getitem",
}  # fmt: skip
_JOINS = {"cat", "concat", "stack", "hstack"}
_SLICES = {
    "getitem", "chunk", "split", "unbind", "narrow", "select", "tensor_split", "split_with_sizes", "index_select",
}  # fmt: skip
_OPAQUE = {
    "sum", "mean", "rsqrt", "norm", "var", "std", "max", "amax", "softmax", "exp", "tanh", "normalize", "sigmoid", "gather",
    "pow",
}  # fmt: skip


class AttentionReader:
    """Reads the formulas of the attentions of one program."""

    def __init__(self, flow: Flow, *, causal_over: str) -> None:
        self._flow, self._causal_over = flow, causal_over
        self._known: dict[Value, _Scaled | None] = {}

    def parts(self, heads: Sequence[FoundAttention]) -> Iterator[Formula]:
        """The parts of one layer."""
        found = heads[0]
        seen = read_layer(heads)
        if found.kernel is not None and found.kernel.name == "multi_head_attention_forward":
            d_head = found.first.inputs[0].shape[-1] // int(argument(found.kernel, 4, "num_heads"))
            scale = part_of("scale", f"q·kᵀ / √{d_head}", "", found.kernel, f"q·kᵀ / √{d_head}")
            yield from filter(None, (scale, self._mask(found, seen)))
            return
        sides = {name: self._traced(value) for name, value in _operands(found).items()}
        scale, mask, softmax = self._scale(heads, sides, seen), self._mask(found, seen), self._softmax(found)
        projections = self._projections(found, sides)
        heads_read = modules_of(self._flow, heads) or equal_heads(found, seen)
        heads_read = heads_read or self._interleaved(found, seen, sides) or heads_of(self._flow, found)
        groups = groups_of(self._flow, found, seen)
        yield from filter(None, (scale, mask, softmax, self._bias(found, seen), projections, groups, heads_read))

    # The scale of the scores

    def _scale(
        self, heads: Sequence[FoundAttention], sides: Mapping[str, _Scaled | None], seen: Watched | None
    ) -> Formula | None:
        found, q, k = heads[0], sides.get("q"), sides.get("k")
        if q is None or k is None or q.is_learned or k.is_learned:
            return None
        after = self._after_product(found)
        if after is None:
            return None
        factor, by = after
        if seen is None or seen.q is None or not q.source.inputs or q.source.name == "embedding":
            return None
        if found.kernel is None and not _agrees(found, seen, factor):
            return None
        d_head, d_model, n_heads = seen.q.shape[-1], q.source.inputs[0].shape[-1], seen.scores.shape[1]
        if q.source.name in _NORMS and factor * q.factor * k.factor == 1.0:
            return None  # normalised queries need no scale
        whole, by = factor * q.factor * k.factor, (*by, *q.by, *k.by)
        formula, cause = _named(whole, d_head, d_model, n_heads)
        at = by[0] if by else found.first
        is_known = not cause or len({one.line for one in by}) < 2  # of several numbers, it is not known which is wrong
        return part_of("scale", formula, cause, at if is_known else None, f"q·kᵀ / √{d_head}")

    def _after_product(self, found: FoundAttention) -> tuple[float, tuple[Operation, ...]] | None:
        """The factor between the product of queries and keys and the scores; None if it is no number."""
        kernel = found.kernel
        if kernel is not None:
            scale = kernel.kwargs.get("scale")
            return (kernel.inputs[0].shape[-1] ** -0.5 if scale is None else float(scale)), (kernel,)
        assert found.product is not None
        product, factor, by = found.product.operation, math.log(found.normaliser.base), tuple[Operation, ...]()
        if product.name in ("baddbmm", "addbmm", "addmm") and product.kwargs.get("alpha", 1) != 1:
            factor, by = factor * float(product.kwargs["alpha"]), (product,)
        for operation in found.chain:
            if operation.name in TIMES | OVER:
                number = factor_of(operation)
                if number is None or number.is_learned:
                    return None
                factor, by = factor * number.value, (*by, operation)
        return factor, by

    def _traced(self, value: Value, depth: int = 0) -> _Scaled | None:
        """Follow queries, keys or values back to their projection; None if they are no multiple of one."""
        if value not in self._known:  # rotations lead to the same value on several ways
            self._known[value] = self._followed(value, depth)
        return self._known[value]

    def _followed(self, value: Value, depth: int) -> _Scaled | None:
        operation = value.operation
        if operation is None or depth > 60 or operation.name in _OPAQUE:
            return None
        if is_projection(self._flow, operation):
            return _Scaled(operation)
        if operation in self._flow.axes.products:
            return None
        if operation.name in TIMES | OVER and (number := factor_of(operation)) is not None:
            inner = self._traced(number.other, depth + 1)
            if inner is None:
                return None
            learned = inner.is_learned or number.is_learned
            factor = inner.factor * (1.0 if number.is_learned else number.value)
            return _Scaled(inner.source, factor, (operation, *inner.by), learned, inner.share, inner.slice)
        sources = [
            one for one in operation.inputs if one.is_from_inputs and one.dtype.is_floating_point | one.dtype.is_complex
        ]
        every = [one for one in (self._traced(source, depth + 1) for source in sources) if one is not None]
        if not every or any(one.source is not every[0].source for one in every):
            return None
        if any(not math.isclose(abs(one.factor), abs(every[0].factor), rel_tol=1e-6) for one in every):
            return None
        first, shares = every[0], [one.share for one in every]
        share = min(1.0, sum(shares)) if operation.name in _JOINS else max(shares)
        if operation.name in _SLICES:
            share *= value.shape.numel() / sources[0].shape.numel()
        part = next((one.slice for one in every if one.slice is not None), value if operation.name in _SLICES else None)
        return _Scaled(first.source, abs(first.factor), first.by, any(one.is_learned for one in every), share, part)

    def _mask(self, found: FoundAttention, seen: Watched | None) -> Formula | None:
        """Which keys a query sees, if queries and keys are positions of the input over which the model is causal."""
        if found.product is not None:
            sides = [found.product.rows, found.product.columns]
        else:
            sides = [self._flow.axes.of(value)[-2] for value in _operands(found).values()][:2]
        if seen is None:
            return None
        if not self._are_of(sides, self._causal_over):
            is_encoder = self._causal_over == "target" and self._are_of(sides, "tokens")
            return mask_of_encoder(seen) if is_encoder or not seen.allowed.any() else None
        after = self._after_product(found)
        read = mask_of(self._flow, found, seen, None if after is None else after[0])
        is_transposed = found.normalised == "query" and read is not None and read.cause == "mask_inverted"
        return None if is_transposed else read  # where the weights are transposed, the mask may be right

    @staticmethod
    def _are_of(sides: Sequence[Axis], name: str) -> bool:
        """Whether the queries and the keys are positions of an input."""
        return bool(name) and all(any(atom.root.name.startswith(f"{name}:") for atom in side) for side in sides)

    def _softmax(self, found: FoundAttention) -> Formula | None:
        """The axis of the softmax; None for a fused function."""
        if found.kernel is not None:
            return None
        over = found.normalised
        cause = {"key": "", "query": "softmax_over_queries", "head": "softmax_over_heads"}.get(
            over, "attention_over_batch"
        )
        formula, by = f"softmax over the {_PLURALS.get(over, 'batch')}", found.normaliser.operation
        if over == "query" and by.name == "softmax" and argument(by, 1, "dim") in (-1, len(by.result.shape) - 1):
            by = found.last  # which reads the transposed weights
        return part_of("softmax", formula, cause, by, "softmax over the keys")

    def _bias(self, found: FoundAttention, seen: Watched | None) -> Formula | None:
        """What is added to the scores beside the mask, if it grows with the distance."""
        product, after = (None if seen is None else product_of(seen)), self._after_product(found)
        if seen is None or product is None or after is None:
            return None
        sums = [one for one in found.chain if one.name in ("add", "sub")]
        return linear_bias(seen.scores - product * after[0], seen.allowed, sums[0] if sums else found.first)

    # Projections and heads

    def _interleaved(
        self, found: FoundAttention, seen: Watched | None, sides: Mapping[str, _Scaled | None]
    ) -> Formula | None:
        """The split of which each head takes every n-th feature; None if they are adjacent, or if that is not known."""
        heads = {} if seen is None else {"v": seen.v, "k": seen.k, "q": seen.q}
        for name, value in heads.items():
            side = sides.get(name)
            whole = None if side is None else self._flow.with_bias(side.source).tensor
            if side is None or value is None or whole is None or not 1 < value.shape[-1] < whole.shape[-1]:
                continue
            columns, first = side.factor * whole.flatten(0, -2).T, value[:, 0].flatten(0, 1).T  # [feature, row]
            if columns.shape[1] != first.shape[1]:
                continue
            is_equal = (first[:, None] - columns).abs().amax(dim=-1) <= 1e-6 * float(columns.abs().max())
            at = [row.nonzero().flatten().tolist() for row in is_equal]
            steps = {b[0] - a[0] for a, b in pairwise(at)} if all(len(one) == 1 for one in at) else set[int]()
            if len(steps) == 1 and (step := steps.pop()) > 1:
                split = first_of(self._flow, _operands(found)[name], RESHAPES)
                usual = f"feature i belongs to head i // {value.shape[-1]}"
                return part_of("heads", f"feature i belongs to head i mod {step}", "heads_interleaved", split, usual)
        return None

    def _projections(self, found: FoundAttention, sides: Mapping[str, _Scaled | None]) -> Formula | None:
        known = {name: side for name, side in sides.items() if side is not None}
        if len(known) < 3:
            return None
        pairs = {f"{one} = {other}": _is_shared(known[one], known[other]) for one, other in ("qk", "kv", "qv")}
        if None in pairs.values():
            return None
        shared = [name for name, is_shared in pairs.items() if is_shared]
        usual = "q, k and v have projections of their own"
        if not shared:
            return part_of("projections", usual, "", None, usual)
        names = shared[0].split(" = ")
        one = max((known[name].source for name in names), key=lambda operation: operation.index)
        line = self._where_shared(found, *names) if known[names[0]].source is known[names[1]].source else None
        words = f"{', '.join(shared)}: one projection"
        return part_of("projections", words, "shared_projection", one, usual, line)

    def _where_shared(self, found: FoundAttention, *names: str) -> SourceLine | None:
        """The line at which one of two operands from the same projection parts from the other."""
        one, other = ([*self._way(_operands(found)[name])] for name in names)
        reader = found.kernel or (found.last if "v" in names else found.first)
        common = next((value for value in other if value in one), None)
        if common is None:
            return None
        ways = [way[: way.index(common)] for way in (one, other)]
        if min(map(len, ways)) == 0:  # one operand is made from the other, or is the other
            ways = [[value for value in way if not _is_view(value)] for way in ways]
        steps = [way[-1].operation for way in ways if way]
        step = max((step for step in steps if step is not None), key=lambda operation: operation.index, default=reader)
        return called_with(step, reader)

    def _way(self, value: Value) -> Iterator[Value]:
        """The values from an operand back to its projection."""
        yield value
        while (operation := value.operation) is not None and not is_projection(self._flow, operation):
            before = next((one for one in operation.inputs if self._traced(one) is not None), None)
            if before is None:
                return
            value = before
            yield value


def _is_view(value: Value) -> bool:
    return value.operation is not None and value.operation.name in SAME_NUMBERS


def _operands(found: FoundAttention) -> dict[str, Value]:
    """Queries, keys and values by name, as the products or the fused function receive them."""
    if found.kernel is not None:
        return dict(zip(("q", "k", "v"), found.kernel.inputs[:3], strict=False))
    return {name: operand.value for name, operand in found.operands.items()}


def _named(factor: float, d_head: int, d_model: int, n_heads: int) -> tuple[str, str]:
    """The formula of the scores with this factor, and the identifier of what is unusual in it."""
    known = (
        (d_head**-0.5, f"q·kᵀ / √{d_head}", ""),
        (1.0, "q·kᵀ", "scale_missing"),
        (d_model**-0.5, f"q·kᵀ / √{d_model}", "scale_by_d_model"),
        (d_head**0.5, f"q·kᵀ · √{d_head}", "scale_inverted"),
        (n_heads**-0.5, f"q·kᵀ / √{n_heads}", "scale_by_n_heads"),
        (1 / d_head, f"q·kᵀ / {d_head}", "scale_by_d_head"),
    )
    for value, formula, cause in known:
        if math.isclose(factor, value, rel_tol=CLOSE):
            return formula, cause
    return f"{factor:.4g} · q·kᵀ", "scale_other"


def _agrees(found: FoundAttention, seen: Watched, factor: float) -> bool:
    """Whether the recorded scores are the product of the recorded queries and keys times the factor, but for added terms."""
    if _is_multiple(found, factor):
        return True
    product = product_of(seen)
    if product is None:
        return False
    x, y = product[seen.allowed] * factor, seen.scores.double()[seen.allowed]
    if x.numel() < 2 or float(x.std()) == 0:
        return False
    if float((x - y).abs().max()) <= CLOSE * float(y.abs().max()):
        return True
    slope = float(((x - x.mean()) * (y - y.mean())).mean() / x.var(correction=0))  # with positions or a softcap added
    return abs(slope - 1) < 0.05


def _is_multiple(found: FoundAttention, factor: float) -> bool:
    """Whether the scores, before anything is added to them, are the product of queries and keys times the factor."""
    scaled = [one for one in found.chain if one.name in TIMES | OVER]
    assert found.product is not None
    if not scaled:
        return all(one.name in _ADDS for one in found.chain)
    first, last = found.product.operation.result.tensor, scaled[-1].result.tensor
    if first is None or last is None or first.shape != last.shape:
        return False
    expected = first.double() * factor / math.log(found.normaliser.base)
    return float((expected - last.double()).abs().max()) <= CLOSE * float(expected.abs().max())


def _is_shared(one: _Scaled, other: _Scaled) -> bool | None:
    """Whether two of queries, keys and values come from the same weights; None if their slices are not known."""
    if not _is_same(one.source, other.source):
        return False
    if min(one.share, other.share) == 1:
        return True
    if one.slice is None or other.slice is None or one.slice.tensor is None or other.slice.tensor is None:
        return None
    return one.slice.tensor.shape == other.slice.tensor.shape and torch.equal(one.slice.tensor, other.slice.tensor)


def _is_same(one: Operation, other: Operation) -> bool:
    """Whether two projections multiply the same input by the same weight, or by the same slice of one."""
    if one is other:
        return True
    if one.name != other.name or len(one.inputs) != len(other.inputs):
        return False
    return all(a is b or _is_one_weight(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))


def _is_one_weight(one: Value, other: Value) -> bool:
    """Whether two values are the same memory of a weight."""
    a, b = one.tensor, other.tensor
    if one.is_from_inputs or other.is_from_inputs or a is None or b is None:
        return False
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())
