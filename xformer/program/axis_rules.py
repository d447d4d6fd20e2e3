"""How views, reductions, tables and kernels pass axes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from xformer.program.axes import (
    Atom,
    Axes,
    Axis,
    RuleTable,
    Tracker,
    argument,
    as_keys,
    axis_at,
    has_inputs,
    new_axes,
    part,
    rank_of,
    regroup,
    size_of,
    unknown_axes,
    unknown_name,
)
from xformer.program.product_rules import is_divided, summed_product
from xformer.program.record import Operation, Value

RULES = RuleTable()


# Views


@RULES.add("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel")
def _reshape(of: Tracker, operation: Operation) -> Axes:
    source, result = operation.inputs[0], operation.result
    axes, old, new = of.of(source), list(source.shape), list(result.shape)
    before = _n_equal(old, new)
    after = _n_equal(old[before:][::-1], new[before:][::-1])
    middle = slice(before, len(old) - after), slice(before, len(new) - after)
    found = regroup(axes[middle[0]], new[middle[1]])
    if found is None:
        found = unknown_axes(result)[middle[1]]
    return (*axes[:before], *found, *axes[len(old) - after :])


def _n_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of equal sizes before the first that differs."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@RULES.add(
    "type_as", "to", "index_copy", "index_add", "index_fill", "scatter", "scatter_add", "masked_scatter", "index_put"
)
def _first(of: Tracker, operation: Operation) -> Axes:
    return of.of(operation.inputs[0])


@RULES.add("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT", "H", "mH", "adjoint")
def _permute(of: Tracker, operation: Operation) -> Axes:
    axes = of.of(operation.inputs[0])
    numbered = torch.empty(tuple(range(len(axes))), device="meta")  # the size of each axis is its number
    order = operation.function(numbered, *operation.args[1:], **operation.kwargs).shape
    return tuple(axes[number] for number in order)


@RULES.add("expand", "expand_as", "broadcast_to", "broadcast_tensors")
def _expand(of: Tracker, operation: Operation) -> Axes | list[Axes]:
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


@RULES.add("repeat", "tile")
def _repeat(of: Tracker, operation: Operation) -> Axes:
    axes, shape = of.of(operation.inputs[0]), operation.result.shape
    axes = (*[()] * (len(shape) - len(axes)), *axes)
    return tuple(
        axis if size_of(axis) == size else (Atom(size // size_of(axis), "new", "repeat"), *axis)
        for axis, size in zip(axes, shape, strict=True)
    )


@RULES.add("repeat_interleave")
def _repeat_interleave(of: Tracker, operation: Operation) -> Axes | None:
    axes, shape = of.of(operation.inputs[0]), operation.result.shape
    if len(axes) != len(shape):
        return None
    return tuple(
        axis if size_of(axis) == size else (*axis, Atom(size // max(1, size_of(axis)), "new", "repeat"))
        for axis, size in zip(axes, shape, strict=True)
    )


@RULES.add("getitem")
def _getitem(of: Tracker, operation: Operation) -> Axes | None:
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
            axis, size = axes.pop(0), shape[len(found)]
            if axis and not isinstance(one, slice) and size_of(axis) == size and not has_inputs(axis):
                axis = (Atom(size, axis[0].origin, axis[0].name, axis[0], is_part=True),)  # perhaps in another order
            found.append(part(axis, size))
        elif isinstance(one, Value):
            if one.dtype == torch.bool:
                for _ in one.shape:
                    axes.pop(0)
                found.append((Atom(shape[len(found)], "unknown"),))
            else:
                is_of_input, name = has_inputs(axes.pop(0)), unknown_name(operation.result)
                unknown = [(Atom(size, "unknown", name),) if size != 1 else () for size in one.shape]
                found += unknown if is_of_input else of.of(one)
        else:
            axes.pop(0)
    return tuple(found)


@RULES.add("setitem")
def _setitem(of: Tracker, operation: Operation) -> Axes:
    """A new tensor or a buffer that is filled has the axes of what is written into it, each at least as long."""
    target, index, written = operation.args
    axes = of.of(target)
    if not isinstance(written, Value) or not written.is_from_inputs:
        return axes
    index = index if isinstance(index, tuple) else (index,)
    if any(one is None or (isinstance(one, Value) and len(one.shape) != 1) for one in index):
        return axes
    if Ellipsis in [one for one in index if not isinstance(one, Value)]:
        at = [one is Ellipsis for one in index].index(True)
        index = (*index[:at], *[slice(None)] * (len(axes) - len(index) + 1), *index[at + 1 :])
    kept = [at for at in range(len(axes)) if at >= len(index) or not isinstance(index[at], int)]
    found, sources = list(axes), of.of(written)
    for at, source in zip(reversed(kept), reversed(sources), strict=False):
        if rank_of(source) > rank_of(axes[at]):
            found[at] = part(source, target.shape[at])
    return tuple(found)


@RULES.add("select")
def _select(of: Tracker, operation: Operation) -> Axes:
    axes = list(of.of(operation.inputs[0]))
    axes.pop(axis_at(operation.inputs[0], argument(operation, 1, "dim")))
    return tuple(axes)


@RULES.add("narrow", "unfold", "pad")
def _resized(of: Tracker, operation: Operation, shuffled: Collection[int] = ()) -> list[Axes] | None:
    axes, name = of.of(operation.inputs[0]), unknown_name(operation.result)
    found = []
    for value in operation.results:
        if operation.name == "unfold" and len(axes) == 4 and len(value.shape) == 3:  # an image as a row of patches
            return [(axes[0], new_axes(value.shape, "weight", "patch")[1], part(axes[2], value.shape[2]))]
        if len(axes) != len(value.shape):
            return None
        sized = enumerate(zip(axes, value.shape, strict=True))
        found.append(tuple(_unordered(axis, n, name) if at in shuffled else part(axis, n) for at, (axis, n) in sized))
    return found


_SHUFFLED_AXIS: dict[str, tuple[int, str, Any]] = {
    "roll": (2, "dims", ()), "flip": (1, "dims", ()), "sort": (1, "dim", -1), "argsort": (1, "dim", -1), "topk": (2, "dim", -1),
    "gather": (1, "dim", -1), "take_along_dim": (2, "dim", ()), "index_select": (1, "dim", 0),
}  # fmt: skip
"""Where the axes are named along which an operation puts entries in another order."""


@RULES.add(*_SHUFFLED_AXIS)
def _shuffled(of: Tracker, operation: Operation) -> list[Axes] | None:
    """Positions in another order are no longer those of the input, so that nothing may be said of them."""
    source = operation.inputs[0]
    at, name, default = _SHUFFLED_AXIS[operation.name]
    dims = argument(operation, at, name, default)
    dims = operation.args[1:] if operation.name == "flip" and isinstance(dims, int) else dims
    dims = range(len(source.shape)) if dims is None or dims == () else dims
    shuffled = {axis_at(source, one) for one in (dims if isinstance(dims, tuple | list | range) else [dims])}
    return _resized(of, operation, shuffled)


def _unordered(axis: Axis, size: int, name: str) -> Axis:
    """An axis with its entries in another order, or some of them: positions of an input are then unknown."""
    return part(axis, size) if not has_inputs(axis) or size == 1 else (Atom(size, "unknown", name),)


@RULES.add("split", "chunk", "tensor_split", "split_with_sizes")
def _split(of: Tracker, operation: Operation) -> list[Axes]:
    source = operation.inputs[0]
    at = axis_at(source, argument(operation, 2, "dim", 0))
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


@RULES.add("unbind")
def _unbind(of: Tracker, operation: Operation) -> Axes:
    source = operation.inputs[0]
    at = axis_at(source, argument(operation, 1, "dim", 0))
    axes = of.of(source)
    return (*axes[:at], *axes[at + 1 :])


@RULES.add("cat", "concat", "concatenate", "hstack", "vstack")
def _cat(of: Tracker, operation: Operation) -> Axes:
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
    best = max(parts, key=lambda axis: (rank_of(axis), size_of(axis)), default=())
    found[at] = part(best, shape[at]) if rank_of(best) >= 0 else new_axes([shape[at]])[0]
    if len({id(atom) for axis in parts for atom in axis}) > 1 and len(parts) > 1 and rank_of(best) < 4:
        found[at] = (Atom(shape[at], best[0].origin if best else "new", "cat"),)
    return tuple(found)


@RULES.add("stack")
def _stack(of: Tracker, operation: Operation) -> Axes:
    shape = operation.result.shape
    at = argument(operation, 1, "dim", 0) % len(shape)
    found = list(of.broadcast(operation.inputs, [*shape[:at], *shape[at + 1 :]]))
    found.insert(at, new_axes([shape[at]], name="stack")[0])
    return tuple(found)


@RULES.add("view_as_complex")
def _to_complex(of: Tracker, operation: Operation) -> Axes:
    return of.of(operation.inputs[0])[:-1]


@RULES.add("view_as_real")
def _to_real(of: Tracker, operation: Operation) -> Axes:
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


@RULES.add(*_REDUCTIONS)
def _reduce(of: Tracker, operation: Operation) -> Axes | None:
    source, result = operation.inputs[0], operation.result
    if not result.shape:
        return ()
    dims = argument(operation, 2 if operation.name == "norm" else 1, "dim", operation.kwargs.get("axis"))
    if isinstance(dims, Value) or dims is None:
        return None
    gone = {axis_at(source, one) for one in (dims if isinstance(dims, tuple | list) else [dims])}
    axes = of.of(source)
    if operation.name == "sum" and len(result.shape) < len(axes):
        product = summed_product(of, operation, source, gone)
        if product is not None:
            return product
    if len(result.shape) == len(axes):
        return tuple(() if at in gone else axis for at, axis in enumerate(axes))
    return tuple(axis for at, axis in enumerate(axes) if at not in gone)


@RULES.add("linear_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic")
def _quantised(of: Tracker, operation: Operation) -> Axes:
    """The weights of `torch.ao.quantization` are no tensors, so the axis of its output has no origin."""
    name = f"the quantised projection {unknown_name(operation.result)}"
    return (*of.of(operation.inputs[0])[:-1], (Atom(operation.result.shape[-1], "unknown", name),))


@RULES.add("embedding")
def _embedding(of: Tracker, operation: Operation) -> Axes:
    ids, table = operation.inputs[:2]
    return (*of.of(ids), of.of(table)[-1])


@RULES.add("one_hot")
def _one_hot(of: Tracker, operation: Operation) -> Axes:
    return (*of.of(operation.inputs[0]), (Atom(operation.result.shape[-1], "new"),))


@RULES.add(
    "conv1d", "conv2d", "conv3d", "unfold_image", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "interpolate"
)
def _convolve(of: Tracker, operation: Operation) -> Axes:
    source, shape = of.of(operation.inputs[0]), operation.result.shape
    channels = of.of(operation.inputs[1])[0] if "conv" in operation.name else source[-len(shape) + 1]
    n_space = len(shape) - 2 if len(source) == len(shape) else 0
    space = [part(axis, size) for axis, size in zip(source[2:], shape[2:], strict=False)][:n_space]
    return (source[0], channels, *space)


# Attention kernels and new tensors


@RULES.add("scaled_dot_product_attention", "flex_attention")
def _sdpa(of: Tracker, operation: Operation) -> Axes:
    query, _, value = operation.inputs[:3]
    shared = of.broadcast(operation.inputs[:3], operation.result.shape)[:-2]
    own = of.of(query)
    if (
        len(own) == len(shared) + 2
    ):  # the heads are those of the queries, even if those of cached keys are an axis of an input
        shared = [one if is_divided(one) else other for one, other in zip(own, shared, strict=False)]
    return (*shared, own[-2], of.of(value)[-1])


@RULES.add("multi_head_attention_forward")
def _multi_head(of: Tracker, operation: Operation) -> list[Axes]:
    query, key = operation.inputs[:2]
    axes = of.of(query)
    found: list[Axes] = [axes]
    for value in operation.results[1:]:
        batch = axes[1:-1]
        heads = new_axes(value.shape[len(batch) : -2], "weight", "heads")
        found.append((*batch, *heads, axes[0], as_keys(of.of(key)[0])))
    return found


@RULES.add(
    "arange", "ones", "zeros", "full", "empty", "rand", "randn", "eye", "linspace", "tensor", "randint", "as_tensor",
    "new_ones", "new_zeros", "new_full", "new_tensor", "new_empty", "randperm", "hann_window", "tril_indices",
    "triu_indices", "meshgrid", "outer", "ger", "cartesian_prod", "nonzero", "scalar_tensor", "logspace",
    "from_numpy", "polar",
)  # fmt: skip
def _new(of: Tracker, operation: Operation) -> list[Axes] | None:
    if operation.name == "polar":
        return None
    return [new_axes(value.shape) for value in operation.results]
