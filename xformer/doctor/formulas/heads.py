"""How an attention splits the model's width into heads, and how it merges them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.doctor.formulas.flow import SAME_NUMBERS, Flow
from xformer.doctor.formulas.formula import Formula, part_of
from xformer.doctor.watch import Watched
from xformer.program.attention import FoundAttention
from xformer.program.axes import Atom, Axis, argument, size_of
from xformer.program.backwards import KERNELS
from xformer.program.record import Operation, Value

SPLIT = "the heads are split by view(batch, pos, head, d_head).transpose(1, 2)"
MERGED = "the heads are merged by z.transpose(1, 2).reshape(batch, pos, d_model)"
CONCATENATED = "the heads are concatenated"
OWN = "each head has queries, keys and values of its own"
EQUAL = "every head has the same queries, keys and values"
_PROJECTIONS = {"linear", "addmm", "conv1d", "conv2d", "embedding", "layer_norm", "rms_norm", "bilinear"}
_PRODUCTS = {"matmul", "bmm", "mm", "baddbmm", "addbmm", "einsum", *KERNELS}
RESHAPES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"}
"""Operations that split or merge axes."""
_REPEATS = {"repeat", "repeat_interleave", "expand", "tile", "cat", "concat", "index_select", "getitem"}
_SIZES = {"expand_as", "view_as", "reshape_as", "type_as", "to"}
_FAR = 24
"""Largest number of operations between a reshape and the product that reads or made its tensor."""


def wrong_reshapes(flow: Flow) -> Iterator[tuple[Operation, Formula]]:
    """Find reshapes in an attention that mix positions with features: where heads are split or merged without a transpose."""
    for operation in flow.program.operations:
        if operation.name in RESHAPES and _mixes(flow, operation):
            old, new = (str(list(value.shape)) for value in (operation.inputs[0], operation.result))
            is_merge, is_split = _comes_from_product(flow, operation), _leads_to_product(flow, operation)
            if is_merge or is_split:
                cause, usual = ("merge", MERGED) if is_merge else ("split", SPLIT)
                formula = f"{operation.name}: {old} → {new}, which mixes positions with features"
                yield operation, part_of("heads", formula, f"{cause}_without_transpose", operation, usual)


def over_heads(flow: Flow) -> Iterator[tuple[Operation, Formula]]:
    """Find products in which the heads of one position attend to each other: their split lacks its transpose."""
    formula = "softmax(q·kᵀ) is [batch, pos, head, head]"
    for operation in (one for one in flow.program.operations if one.name == "scaled_dot_product_attention"):
        *outer, rows, _ = flow.axes.of(operation.inputs[0])
        is_alone = any(_is_position(flow, atom) for axis in outer for atom in axis)
        if is_alone and rows and all(_is_feature(flow, atom) for atom in rows):
            yield operation, part_of("heads", formula, "attention_over_heads", operation, SPLIT)
    for operation, product in flow.axes.products.items():
        is_alone = any(_is_position(flow, atom) for atom in product.shared) and product.rows and product.columns
        others = (*product.rows, *product.columns, *(atom for axis in product.contracted for atom in axis))
        if is_alone and all(_is_feature(flow, atom) for atom in others):
            after, value = list[Operation](), operation.result
            while len(readers := flow.consumers.get(value, ())) == 1 and len(after) < _FAR and readers[0].results:
                after.append(readers[0])
                value = readers[0].result
            softmax = next((one for one in after if one.name == "softmax"), None)
            if softmax is not None and not any(one.name in _PRODUCTS for one in after[: after.index(softmax)]):
                yield operation, part_of("heads", formula, "attention_over_heads", operation, SPLIT)


def _mixes(flow: Flow, operation: Operation) -> bool:
    """Whether a reshape has an axis as long as that of the positions, in which it mixes positions with features.

    To flatten positions and heads into one axis, or to join neighbours, is another thing: nothing is mixed.
    """
    source, result = flow.axes.of(operation.inputs[0]), flow.axes.of(operation.result)
    if any(atom.origin == "unknown" for axis in source for atom in axis):
        return False
    lengths = {axis[0].size for axis in source if len(axis) == 1 and _is_position(flow, axis[0])}
    lengths.discard(2)  # the batch
    new = [axis for axis in result if axis not in source]
    is_lost = any(atom.origin == "unknown" for axis in new for atom in axis)
    kept = {atom for axis in result for atom in axis}
    mixed = (
        [atom for axis in source for atom in axis if atom not in kept]
        if is_lost
        else [one for axis in new for one in axis]
    )
    return (
        any(_is_feature(flow, atom) for atom in mixed)
        and any(_is_position(flow, atom) for atom in mixed)
        and any(size_of(axis) in lengths and _is_part(flow, axis) for axis in new)
    )


def _is_part(flow: Flow, axis: Axis) -> bool:
    """Whether an axis has something of positions, but is not all of them."""
    is_whole = len(axis) == 1 and not axis[0].is_divisor and axis[0].origin != "unknown"
    return not is_whole and any(atom.origin == "unknown" or _is_position(flow, atom) for atom in axis)


def _is_position(flow: Flow, atom: Atom) -> bool:
    is_batch = atom.root.name.endswith(":0")
    return atom.origin == "input" and atom.size > 1 and not is_batch and not flow.axes.is_features((atom,))


def _is_feature(flow: Flow, atom: Atom) -> bool:
    return atom.root.origin == "weight" or flow.axes.is_features((atom,))


def _is_of_two(flow: Flow, operation: Operation) -> bool:
    """Whether an operation multiplies two tensors that depend on the input."""
    is_product = operation.name in _PRODUCTS or operation in flow.axes.products
    return is_product and sum(value.is_from_inputs for value in operation.inputs) > 1


def is_projection(flow: Flow, operation: Operation) -> bool:
    """Whether an operation multiplies features by a weight, or normalises them."""
    is_product = operation.name in _PRODUCTS or operation in flow.axes.products
    return operation.name in _PROJECTIONS or (is_product and not _is_of_two(flow, operation))


def _comes_from_product(flow: Flow, operation: Operation) -> bool:
    """Whether a tensor is the product of weights and values, through views and elementwise operations."""
    value = operation.inputs[0]
    for _ in range(_FAR):
        maker = value.operation
        if maker is None or is_projection(flow, maker) or not maker.inputs:
            return False
        if _is_of_two(flow, maker):
            return True
        value = maker.inputs[0]
    return False


def _leads_to_product(flow: Flow, operation: Operation) -> bool:
    """Whether a tensor becomes the queries, keys or values of an attention."""
    reached, new = set[Value](), {operation.result}
    for _ in range(_FAR):
        after = [one for value in new for one in flow.consumers.get(value, ())]
        if any(_is_of_two(flow, one) for one in after):
            return True
        reached |= new
        new = {value for one in after if not is_projection(flow, one) for value in one.results} - reached
    return False


def heads_of(flow: Flow, found: FoundAttention) -> Formula | None:
    """Read how an attention orders and merges its heads; None if that cannot be followed."""
    heads = [axis for axis in flow.axes.of(found.z) if _is_of_heads(axis, found)]
    if found.layout.n_heads < 2 or not heads:
        return None
    own = {id(atom) for axis in heads for atom in axis}
    atoms = {id(atom.root) for axis in heads for atom in axis}  # of heads and of features, if both come from one axis
    value, merged = found.z, found.last
    for _ in range(12):
        after = [one for one in flow.consumers[value] if one.name not in ("size", "dim", "shape")]
        after = [one for one in after if one.name not in _SIZES or one.inputs[0] is value]
        if len(after) != 1:
            return None
        operation = after[0]
        if operation.name in ("mean", "sum"):
            dims = argument(operation, 1, "dim")
            dims = [] if dims is None else list(dims) if isinstance(dims, list | tuple) else [dims]
            over = {id(atom.root) for dim in dims for atom in flow.axes.of(value)[dim]}
            if over and over <= atoms:
                words = "averaged" if operation.name == "mean" else "added up"
                return part_of("heads", f"the heads are {words}", "heads_averaged", operation, CONCATENATED)
            return None
        if _sums_heads(flow, operation, value, atoms):
            return part_of("heads", "the heads are added up", "heads_averaged", operation, CONCATENATED)
        if is_projection(flow, operation):
            last = flow.axes.of(value)[-1]
            joined = {id(atom.root) for atom in last}
            if not atoms <= joined:
                return None
            is_of_heads = [id(atom) in own for atom in last]
            if not any(is_of_heads):
                is_of_heads = [id(atom.root) in atoms for atom in last]
            if len(last) > 1 and not is_of_heads[0] and is_of_heads[-1]:
                words = "feature i comes from head i mod " + str(last[-1].size)
                return part_of("heads", words, "heads_interleaved", merged, MERGED)
            return part_of("heads", CONCATENATED, "", operation, CONCATENATED)
        if operation in flow.axes.products or not operation.results:
            return None
        merged = operation if operation.name in RESHAPES else merged
        value = operation.result
    return None


def _sums_heads(flow: Flow, operation: Operation, value: Value, atoms: set[int]) -> bool:
    """Whether an einsum sums over the heads alone, as in "bhia,ad->bid"."""
    equation = operation.args[0] if operation.name == "einsum" and operation.args else None
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return False
    terms, _, result = equation.replace(" ", "").partition("->")
    own = dict(zip(operation.inputs, terms.split(","), strict=False)).get(value, "")
    axes = flow.axes.of(value)
    heads = {letter for letter, axis in zip(own, axes, strict=False) if {id(atom.root) for atom in axis} & atoms}
    return any(terms.count(letter) == 1 and letter not in result for letter in heads)


def modules_of(flow: Flow, heads: Sequence[FoundAttention]) -> Formula | None:
    """Read whether the outputs of heads that are modules are averaged or added up; None if they are not."""
    outputs = {flow.root(one.z) for one in heads}
    value = heads[0].z
    for _ in range(_FAR if len(heads) > 1 else 0):
        after = flow.consumers[value]
        if len(after) != 1 or not after[0].results:
            return None
        operation = after[0]
        joined = {flow.root(one) for one in operation.inputs} & outputs
        if operation.name in ("add", "sub") and len(joined) > 1:
            return part_of("heads", "the heads are added up", "heads_averaged", operation, CONCATENATED)
        if operation.name == "stack":
            over = [one for one in flow.consumers[operation.result] if one.name in ("mean", "sum")]
            at = argument(operation, 1, "dim", 0) % len(operation.result.shape)
            dims = [argument(one, 1, "dim") for one in over]
            if len(over) == 1 and isinstance(dims[0], int) and dims[0] % len(operation.result.shape) == at:
                words = "averaged" if over[0].name == "mean" else "added up"
                return part_of("heads", f"the heads are {words}", "heads_averaged", over[0], CONCATENATED)
            return None
        if operation.name not in SAME_NUMBERS:
            return None
        value = operation.result
    return None


def equal_heads(found: FoundAttention, seen: Watched | None) -> Formula | None:
    """That all heads compute the same; None if they do not, or if that is not known."""
    parts = [] if seen is None else [seen.q, seen.k, seen.v]
    if not parts or any(
        one is None or one.shape[1] < 2 or not one.any() or not one.isfinite().all() or len(set(owners(one[0]))) > 1
        for one in parts
    ):
        return None
    return part_of("heads", EQUAL, "heads_equal", found.first, OWN)


def groups_of(flow: Flow, found: FoundAttention, seen: Watched | None) -> Formula | None:
    """Read which key and value head each query head reads; None if that is not seen, or each has its own."""
    n_heads, read = found.layout.n_heads, list[Formula]()
    for name, heads in (("k", seen.k), ("v", seen.v)) if seen is not None else ():
        if heads is None or heads.shape[1] != n_heads or name not in found.operands or not heads.isfinite().all():
            continue
        owner = owners(heads[0])
        n_groups = len(set(owner))
        if n_groups in (1, n_heads) or n_heads % n_groups:
            continue
        usual = f"query head h reads key/value head h // {n_heads // n_groups}"
        by = first_of(flow, found.operands[name].value, _REPEATS)
        if owner == [h % n_groups for h in range(n_heads)]:
            formula = f"query head h reads key/value head h mod {n_groups}"
            read.append(part_of("key/value heads", formula, "key_value_head_order", by, usual))
        if owner == [h - h % (n_heads // n_groups) for h in range(n_heads)]:
            read.append(part_of("key/value heads", usual, "", by, usual))
    return max(read, key=lambda one: one.cause, default=None)


def owners(heads: Float[Tensor, "head pos width"]) -> list[int]:
    """The first head with the same values as each head; the values must be finite."""
    return [next(i for i in range(h + 1) if torch.equal(heads[i], heads[h])) for h in range(len(heads))]


def first_of(flow: Flow, value: Value, names: Collection[str]) -> Operation | None:
    """The first operation with one of these names between a projection and a value."""
    found, one = None, value.operation
    while one is not None and one.inputs and not is_projection(flow, one):
        found = one if one.name in names else found
        one = one.inputs[0].operation
    return found


def _is_of_heads(axis: Axis, found: FoundAttention) -> bool:
    """Whether an axis of z is that of its heads."""
    return len(axis) == 1 and axis[0].size == found.z_layout.n_heads and axis[0].origin not in ("input", "new")
