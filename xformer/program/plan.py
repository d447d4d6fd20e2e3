"""The attention layers of a module: which operations to watch in any of its passes, and how their tensors are laid out.

    plan = plan_attention(module, call, inputs)
    plan.layers[0][0].pattern.layout.to_heads(tensor)            [batch, head, query, key]

The plan is made with the inputs and, where the module allows it, again with one more text and one more position; all must
agree. Axes of size 1 would otherwise not be distinguished.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import nn

from xformer.program.attention import AttentionFinder, FoundAttention, Refusal
from xformer.program.axis_tracker import AxisTracker
from xformer.program.backwards import KERNELS, NORMALISED
from xformer.program.heads import HeadLayout
from xformer.program.inputs import Call, Inputs, larger
from xformer.program.record import Address, Operation, Program, Value, record

COUNTED = (*KERNELS, "softmax", "log_softmax")
"""The functions whose number in a run tells whether it computes the attention that was found, and no more."""


@dataclass(frozen=True)
class WatchedTensor:
    """One tensor of an attention."""

    address: Address
    """The operation that computes it."""
    result: int
    """Which of its results."""
    layout: HeadLayout


@dataclass(frozen=True)
class WatchedOperand:
    """Queries, keys or values, as an argument of a product."""

    name: str
    """q, k or v."""
    address: Address
    """The product."""
    argument: int
    """The place among its arguments."""
    layout: HeadLayout


@dataclass(frozen=True)
class Piece:
    """An attention, or one head of it that is computed alone."""

    scores: WatchedTensor
    pattern: WatchedTensor
    z: WatchedTensor
    operands: tuple[WatchedOperand, ...] = ()
    """Queries, keys and values; empty if one of them has no layout of heads, or in a fused function."""
    kernel: str = ""
    """The fused function that computes all of it; "" for attention in steps."""
    normalised: str = "key"
    is_masked_later: bool = False
    """Whether the mask is applied to the exponentials or the weights instead of the scores."""
    line: str = ""
    """The line of source of the scores, as "model.py:38"."""


@dataclass(frozen=True)
class AttentionPlan:
    """Every attention of a module, in the order of its pass."""

    layers: tuple[tuple[Piece, ...], ...]
    """For each layer its pieces; usually one."""
    batch: tuple[str, int] | None = None
    """The input and the axis of it that is the batch; None if there is no batch."""
    refused: tuple[str, ...] = ()
    """What looks like attention and cannot be read, with the reason."""
    notes: tuple[str, ...] = ()
    """Where attention may be hidden."""
    counts: Mapping[tuple[str, str], int | None] = field(default_factory=dict)
    """By module and function, the number of softmaxes, fused functions and, where attention is computed, of its functions.

    None for a number that changes with the sizes of the input.
    """


NO_PLAN = AttentionPlan(())


def plan_attention(module: nn.Module, call: Call, inputs: Inputs) -> AttentionPlan:
    """Find the attention of a module that is called with `inputs`. The module must be in eval mode and without gradients."""
    plan = _planned(module, call, inputs)
    for attempts in larger(inputs):
        for other in attempts:
            with suppress(Exception):  # a module may raise anything for sizes that it does not take
                plan = _merged(plan, _planned(module, call, other))
                break
    return plan


def _planned(module: nn.Module, call: Call, inputs: Inputs) -> AttentionPlan:
    for kept in ((), NORMALISED):
        program = record(module, lambda: call(module, inputs), inputs, keep_of=kept)
        finder = AttentionFinder(program, AxisTracker(program))
        if not finder.needs_numbers:
            break
    layers, refused = layers_of(program, finder)
    refused += (one for found in finder.found for one in _changed_views(found, finder.axes))
    refused += _changed_z(program, finder.found)
    refused += _other_axes(finder.found)
    roots = sorted({found.batch.root.name for found in finder.found if found.batch is not None} - {""})
    batch = None
    if roots:
        name, _, axis = roots[0].rpartition(":")
        batch = name, int(axis)
    reasons = tuple(dict.fromkeys(map(str, refused)))
    notes = tuple(dict.fromkeys(finder.notes))
    pieces = tuple(tuple(map(_piece, layer)) for layer in layers)
    places = {(address.module, address.name) for layer in pieces for address in _addresses(layer)}
    every = ((operation.address.module, operation.name) for operation in program.operations)
    counts = Counter(place for place in every if place in places or place[1] in COUNTED)
    return AttentionPlan(pieces, batch, reasons, notes, counts)


def _other_axes(every: Sequence[FoundAttention]) -> Iterator[Refusal]:
    """Attention along another axis of an input than an earlier layer's, as between the texts of a batch."""
    axes: dict[str, str] = {}
    for found in every:
        root = "" if found.batch is None else found.batch.root.name
        name = root.rpartition(":")[0]
        if root and axes.setdefault(name, root) != root:
            yield Refusal(found.first, "it attends along another axis of the input than the layers before it")


def _changed_views(found: FoundAttention, axes: AxisTracker) -> Iterator[Refusal]:
    """Scores and weights that were last changed through a view with other axes, so that no operation returns them."""
    for what, value in ("scores", found.scores), ("weights", found.pattern):
        writer = value.operation
        if writer is not None and value not in writer.results and axes.of(value) != axes.of(writer.result):
            yield Refusal(
                writer, f"its {what} are changed in place through a view with other axes, as a slice or a transpose"
            )


def _changed_z(program: Program, every: Sequence[FoundAttention]) -> Iterator[Refusal]:
    """z of which a part is changed in place, or all through a view: the model goes on with other numbers than are recorded."""
    own = {found.z for found in every}
    for operation in program.operations if own else ():
        changed, is_view = operation.inputs[0] if operation.is_in_place and operation.inputs else None, False
        while changed is not None and changed not in own:
            view = changed.operation
            changed, is_view = (view.inputs[0], True) if view is not None and view.name in _VIEWS else (None, False)
        if changed is not None and (is_view or operation.name == "setitem"):
            yield Refusal(operation, "its z is changed in place in a slice, or through a view such as a transpose")


def layers_of(program: Program, finder: AttentionFinder) -> tuple[list[list[FoundAttention]], list[Refusal]]:
    """The attention layers of a program, each with the heads that are computed alone, and what cannot be read."""
    refused = list(finder.refused)
    consumers = _consumers(program)
    layers: list[list[FoundAttention]] = []
    for found in sorted(finder.found, key=_begin):
        if layers and _is_another_head(layers[-1], found, consumers):
            layers[-1].append(found)
        else:
            layers.append([found])
    for one, other in pairwise(layers):
        if _are_pieces(one[-1], other[0], finder.axes):
            is_loop = one[-1].first.site == other[0].first.site
            how = "piece by piece in a loop over" if is_loop else "in several pieces, over"
            refused.append(Refusal(other[0].first, f"it is computed {how} {_divided(one[-1])}"))
            break
    return layers, refused


def _begin(found: FoundAttention) -> int:
    """The index of the operation that completes its scores; layers are in this order, in which a run meets them."""
    assert found.scores.operation is not None
    return found.scores.operation.index


def _divided(found: FoundAttention) -> str:
    """What the pieces of an attention are parts of."""
    if not found.has_queries:
        return "its queries"
    if _is_of_one_text(found):
        return "its batch"
    sides = {"query": "its queries", "key": "its keys"}
    return "windows of positions" if len(found.sliced) > 1 else sides.get("".join(found.sliced), "its input")


def _piece(found: FoundAttention) -> Piece:
    line = found.first.line
    return Piece(
        _watch(found.scores, found.layout),
        _watch(found.pattern, found.pattern_layout),
        _watch(found.z, found.z_layout),
        _operands(found),
        "" if found.kernel is None else found.kernel.name,
        found.normalised,
        found.is_masked_later,
        "" if line is None else str(line),
    )


def _watch(value: Value, layout: HeadLayout) -> WatchedTensor:
    operation = value.operation
    assert operation is not None
    result = operation.results.index(value) if value in operation.results else 0  # else a view with the same axes
    return WatchedTensor(operation.address, result, layout)


def _operands(found: FoundAttention) -> tuple[WatchedOperand, ...]:
    """The operands of an attention whose scores are those of its keys alone, without a sink's."""
    pairs = (found.scores, found.layout), (found.pattern, found.pattern_layout)
    scores, pattern = (layout.to_heads(torch.empty(value.shape, device="meta")).shape for value, layout in pairs)
    if found.product is None or found.product.operation.name == "cdist" or scores != pattern:
        return ()
    watched = []
    for name, operand in found.operands.items():
        product = found.values if name == "v" else found.product
        assert product is not None
        args = product.operation.args
        places = [at for at, value in enumerate(args) if isinstance(value, Value)][-2:]
        place = next((at for at in places if args[at] is operand.value), None)
        if place is not None:
            watched.append(WatchedOperand(name, product.operation.address, place, operand.layout))
    return tuple(watched) if len(watched) == 3 else ()


def _consumers(program: Program) -> dict[Value, list[Operation]]:
    found: dict[Value, list[Operation]] = defaultdict(list)
    for operation in program.operations:
        for value in operation.inputs:
            found[value].append(operation)
    return found


def _is_another_head(
    layer: Sequence[FoundAttention], found: FoundAttention, consumers: Mapping[Value, list[Operation]]
) -> bool:
    """Whether an attention is one more head of a layer whose heads are computed one by one and then joined."""
    last, first = layer[-1].first, found.first
    if (last.name, last.line) != (first.name, first.line):
        return False
    if layer[-1].pattern_layout.n_heads > 1 or found.pattern_layout.n_heads > 1:
        return False
    if last.address.module == first.address.module:
        if last.address.call != first.address.call:
            return False  # the same module called again, on other inputs
        if any(one.sliced or not one.has_queries for one in (layer[-1], found)):
            return False  # one query after the other
    if _sources(layer[-1]) != _sources(found) or _depends(found, {one.last for one in layer}):
        return False
    return bool(_joins(layer[-1], consumers) & _joins(found, consumers))


def _sources(found: FoundAttention) -> set[int]:
    """The inputs that positions come from."""
    product = found.product
    return set() if product is None else {id(atom.root) for atom in (*product.rows, *product.columns)}


def _are_pieces(one: FoundAttention, other: FoundAttention, axes: AxisTracker) -> bool:
    """Whether two attentions are parts of one, neither of which depends on the other; layers stand elsewhere in the code."""
    first, second = one.first, other.first
    is_same_module = first.address.module == second.address.module
    if not is_same_module or _sources(one) != _sources(other) or _weights(one, axes) != _weights(other, axes):
        return False
    if not (one.has_queries or other.has_queries):
        return first.site == second.site  # one query after the other, as in a recurrent decoder
    is_part = all(each.sliced or _is_of_one_text(each) for each in (one, other))
    is_turn = first.site == second.site and first.address.call == second.address.call
    return (is_part or is_turn) and not _depends(other, {one.last})


def _weights(found: FoundAttention, axes: AxisTracker) -> set[str]:
    """The weights that its queries and keys come from."""
    query, key = (found.first.inputs[at] for at in range(2))
    contracted = (axes.of(query)[-1], axes.of(key)[-1]) if found.product is None else found.product.contracted
    return {atom.root.name for axis in contracted for atom in axis}


def _is_of_one_text(found: FoundAttention) -> bool:
    """Whether it is between the positions of one text of a batch."""
    names = set() if found.product is None else {atom.root.name for atom in found.product.rows}
    return (
        found.batch is None
        and any(name.endswith(":1") for name in names)
        and not any(name.endswith(":0") for name in names)
    )


def _depends(found: FoundAttention, on: set[Operation]) -> bool:
    """Whether the scores of an attention depend on these operations."""
    first = min(one.index for one in on)
    left, seen = [found.first], set()
    while left:
        operation = left.pop()
        if operation in on:
            return True
        for value in operation.inputs:
            before = value.operation
            if before is not None and before.index >= first and before not in seen:
                seen.add(before)
                left.append(before)
    return False


_VIEWS = (
    "getitem", "select", "narrow", "split", "chunk", "unbind", "diagonal", "transpose", "swapaxes", "permute", "movedim", "T",
    "mT", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
)  # fmt: skip
_JOINING = ("cat", "concat", "concatenate", "stack", "hstack")


def _joins(found: FoundAttention, consumers: Mapping[Value, list[Operation]]) -> set[Operation]:
    """The operations that join what one head computes with that of others, and those that go on adding to it."""
    joins: set[Operation] = set()
    value = found.z
    for _ in range(40):
        following = consumers.get(value, [])
        if joining := {one for one in following if one.name in _JOINING}:
            return joining
        if len(following) != 1:
            break
        operation = following[0]
        if operation.name == "add" and sum(one.is_from_inputs for one in operation.inputs) > 1:
            joins.add(operation)
        value = operation.result
    return joins


def _merged(one: AttentionPlan, other: AttentionPlan) -> AttentionPlan:
    """What two passes at different sizes say together: the layout in which fewer axes are of size 1."""
    if not one.layers or one.refused:
        return other if other.layers and not one.layers and not one.refused else one
    if other.refused:
        return replace(one, refused=other.refused)
    if len(one.layers) != len(other.layers):
        return one
    layers, is_exact = [], False  # whether the operations are those of these sizes alone, as after a loop
    for first, second in zip(one.layers, other.layers, strict=True):
        if len(first) != len(second):
            return replace(one, refused=(f"its heads change with the sizes of the input ({first[0].line})",))
        pairs = [*zip(_addresses(first), _addresses(second), strict=False)]
        is_exact |= any(a != b for a, b in pairs)
        n, mine, yours = _n_factors(second) - _n_factors(first), _layouts(first), _layouts(second)
        if n > 0 and any((a.module, a.name) != (b.module, b.name) for a, b in pairs):
            return replace(one, refused=(f"its operations change with the sizes of the input ({first[0].line})",))
        if n == 0 and mine != yours:
            return replace(one, refused=(f"its axes change with the sizes of the input ({first[0].line})",))
        merged = map(_with_layouts, first, second) if n > 0 else first
        pieces = zip(merged, first, second, strict=True)
        layers.append(tuple(replace(piece, operands=_merged_operands(*both)) for piece, *both in pieces))
    mine, yours = one.counts, one.counts if is_exact else other.counts
    counts = {place: mine.get(place) if mine.get(place) == yours.get(place) else None for place in {**mine, **yours}}
    return replace(one, layers=tuple(layers), batch=one.batch or other.batch, counts=counts)


def _addresses(layer: Sequence[Piece]) -> list[Address]:
    """The operations of a layer that are watched."""
    steps = [one.address for piece in layer for one in (piece.scores, piece.pattern, piece.z)]
    return steps + [one.address for piece in layer for one in piece.operands]


def _layouts(layer: Sequence[Piece]) -> list[HeadLayout]:
    return [one.layout for piece in layer for one in (piece.scores, piece.pattern, piece.z)]


def _with_layouts(piece: Piece, other: Piece) -> Piece:
    """A piece with the layouts of the same piece in another pass."""
    names = ("scores", "pattern", "z")
    changed = {name: replace(getattr(piece, name), layout=getattr(other, name).layout) for name in names}
    return replace(piece, **changed)


def _merged_operands(piece: Piece, other: Piece) -> tuple[WatchedOperand, ...]:
    """The operands that two passes agree on: those in which fewer axes are of size 1."""
    n, n_other = (sum(len(axis) for one in of.operands for axis in one.layout.factors) for of in (piece, other))
    mine, yours = ([one.layout for one in of.operands] for of in (piece, other))
    if not (n and n_other) or (n == n_other and mine != yours):
        return ()
    layouts = mine if n >= n_other else yours
    return tuple(replace(one, layout=layout) for one, layout in zip(piece.operands, layouts, strict=True))


def _n_factors(layer: Sequence[Piece]) -> int:
    """The number of named factors of a layer's axes."""
    return sum(len(axis) for layout in _layouts(layer) for axis in layout.factors)
