"""The source of a module, with what each of its lines computed.

    xformer.code_view(module, inputs)                     in a notebook
    xformer.code_view(module, inputs).save_html("code.html")
    xformer.code_view(module, inputs, changed=other)      beside another module; marks the first line whose tensor differs

Beside a line stand the shape of its result with the names of its axes, a thumbnail and the range. A line that ran in several
modules has a chooser. A click enlarges the tensor; a click on a cell shows the arithmetic of that number.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xformer.errors import InputError
from xformer.files import write_atomically
from xformer.formatting import similar_names
from xformer.program.inputs import ModuleInputs, named_inputs
from xformer.program.operations import Operations
from xformer.program.record import Operation, Value
from xformer.viz.theme import DIVERGING, SEQUENTIAL, in_both_themes
from xformer.widgets.code_difference import Difference, OperationPairs, compare
from xformer.widgets.code_lines import CodeRun, Function, Owner, function_at, run_code
from xformer.widgets.page import stand_alone_page

ROOM = 2_000_000
"""Largest size of all numbers in bytes; base64 adds a third."""
CROPS = (256, 128, 96, 64, 48, 40, 32, 24, 20, 16, 12, 10, 8, 6, 4)
"""The largest numbers of entries of an axis that are embedded, tried in this order. Axes of positions have four times more."""
LEAST = 16
"""The number of entries below which fewer layers are embedded rather than fewer entries."""
HUGE = 1e30
"""Numbers beyond it are counted apart from the range, such as the smallest number of a type, which masks add to scores."""
POSITIONS = ("pos", "query", "key")


@dataclass(frozen=True, eq=False)
class CodeView:
    """The source of a module with its tensors. Shown in a notebook, or saved as a page that works without a network.

    Example:
        >>> import torch, xformer
        >>> view = xformer.code_view(torch.nn.Linear(3, 5), torch.ones(1, 4, 3))
        >>> view.operations[0].name, view.difference
        ('linear', None)
    """

    operations: Operations
    difference: Difference | None
    page: str

    def save_html(self, path: str | Path) -> None:
        """Write the view as one HTML file."""
        write_atomically(Path(path), self.page.encode())

    def _repr_html_(self) -> str:
        look = "width:100%;height:760px;border:0"
        return f'<iframe srcdoc="{escape(self.page)}" style="{look}" title="Code and tensors"></iframe>'


def code_view(
    module: nn.Module,
    inputs: ModuleInputs,
    *,
    changed: nn.Module | ModuleInputs | None = None,
    tokens: Sequence[str] | None = None,
    at: str = "",
    mark: str = "",
) -> CodeView:
    """Show a module's own source, and beside every line what it computed for these inputs.

    Attention is computed step by step where a module has a way to do so: our own model, and models of Transformers (eager).

    Args:
        module: Any module; its source is that of the functions that its forward pass calls.
        inputs: One tensor, several positional arguments, or named arguments.
        changed: A second module that is called with the same inputs, or other inputs of the same module. Both are shown side by
            side, and the first line whose tensor differs is marked.
        tokens: The labels of the positions; by default token ids, or numbers.
        at: The path of a submodule to show first. Of a large model, the page has the numbers of some layers only, this one's
            first, and the ranges of the others.
        mark: A line to mark and to show first, such as `diagnosis.broken[0].line`.

    Returns:
        The view: the output of a notebook's cell, or a file with `save_html`.

    Raises:
        InputError: No operation ran in `at`, or in the line `mark`.

    Example:
        >>> import torch, xformer
        >>> view = xformer.code_view(xformer.load("checkpoints/reverse").model, torch.tensor([[3, 7, 12, 9]]))
        >>> "<iframe" in view._repr_html_()
        True
    """
    run, other = run_code(module, inputs), None
    paths = dict.fromkeys(one.address.module for one in run.operations)
    if at and not any(f"{path}.".startswith(f"{at}.") for path in paths):
        raise InputError(f"No operation ran in {at!r}; {similar_names(at, list(paths))}")
    caption = [f"{type(module).__name__}: {len(run.operations)} operations. {run.steps}"]
    if isinstance(changed, nn.Module):
        other = run_code(changed, inputs)
    elif changed is not None:
        other = run_code(module, changed)
    comparison = None if other is None else compare(run.operations, other.operations)
    first = None if comparison is None else comparison.first
    if comparison is not None:
        with_what = type(changed).__name__ if isinstance(changed, nn.Module) else "other inputs"
        caption.append(
            f"Compared with {with_what}. {f'{first.line}: {first.reason}' if first else 'No tensor differs.'}"
        )
    named = mark_of(run, mark)
    if mark and named is None:
        lines = list(dict.fromkeys(str(one.line) for one in run.operations if one.line is not None))
        raise InputError(f"No operation ran in the line {mark!r}; {similar_names(mark, lines)}")
    if named is not None:
        caption.append(f"Marked: {mark}.")
    labels = list(tokens) if tokens is not None else _labels(inputs)
    data = {"data": code_data(run, labels, other, comparison, at=at, mark=named)}
    return CodeView(
        run.operations, first, stand_alone_page("code_view", "code", data, caption, title="Code and tensors")
    )


def mark_of(run: CodeRun, line: str) -> Difference | None:
    """The result of a line in the first call that runs it, to be marked; None if it computes nothing."""
    every = [one for one, frames in zip(run.operations, run.frames, strict=True) if frames and str(one.line) == line]
    same = [one for one in every if one.running == every[0].running]
    return Difference(line, same[-1].index, "A finding names this line.") if same else None


def _labels(inputs: ModuleInputs) -> list[str]:
    ids = next((one for one in named_inputs(inputs).values() if isinstance(one, Tensor) and one.dim() >= 1), None)
    if ids is None or ids.is_floating_point() or ids.dim() > 2:
        return []
    return [str(int(token)) for token in (ids if ids.dim() == 1 else ids[0])]


def code_data(
    run: CodeRun,
    labels: Sequence[str] = (),
    changed: CodeRun | None = None,
    comparison: OperationPairs | None = None,
    *,
    at: str = "",
    mark: Difference | None = None,
) -> bytes:
    """Pack the view: a JSON header with its length in front, then the numbers as 32-bit floats.

    Args:
        run: The recorded pass.
        labels: The labels of the positions.
        changed: Another pass to show beside it. Its operations are numbered after those of `run`.
        comparison: The comparison of both.
        at: The module to show first.
        mark: An operation to mark with its line, if there is no comparison.
    """
    sources = [_Source(run, 0)] + ([] if changed is None else [_Source(changed, len(run.operations))])
    pairs = () if comparison is None else comparison.pairs
    n, first = len(run.operations), mark if comparison is None else comparison.first
    start = _start(run, at) if first is None else first.operation
    packed = _Numbers(sources, at or run.operations[start].address.module)
    header = {
        "functions": [_function(pair, sources) for pair in _paired(sources, pairs)],
        "operations": packed.operations,
        "operands": packed.operands,
        "labels": list(labels),
        "changed": n if changed is not None else None,
        "start": start,
        "difference": first and {"operation": first.operation, "reason": first.reason, "line": first.line},
        "counterparts": {str(mine): yours + n for mine, yours in pairs}
        | {str(yours + n): mine for mine, yours in pairs},
        "differing": sorted(comparison.differing) if comparison is not None else [],
        "colours": {"diverging": in_both_themes(DIVERGING), "sequential": in_both_themes(SEQUENTIAL)},
    }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<II", 0, len(text)) + text + b"".join(packed.arrays)


def _start(run: CodeRun, at: str) -> int:
    """The operation to show first: in `at`, the weights of the first attention, else the first result with two axes."""
    inside = [one for one in run.operations if f"{one.address.module}.".startswith(f"{at}.") or not at]
    numbers = {one.index for one in inside}
    heads = (layer.heads[0] for layer in run.operations.attentions)
    shown = ((one.normaliser.operation if one.kernel is None else one.kernel).index for one in heads)
    found = next((index for index in shown if index in numbers), None)
    return next((one.index for one in inside if len(one.result.shape) > 1), 0) if found is None else found


Step = tuple[int, str]
"""An operation, and what the line called to compute it; "" for an operation that the line called itself."""


class _Source:
    """The functions that a pass ran, and the results of each line in each module.

    A line has the results of its own operations. One that called a function or a module has the results of that which are used
    elsewhere: what it returned.
    """

    def __init__(self, run: CodeRun, offset: int) -> None:
        self.run, self.offset = run, offset
        self.used = _used(run.operations)
        self.blocks: dict[Function, dict[Owner, dict[int, list[Step]]]] = {}
        self._known: dict[str, list[Function]] = {}
        used = [(run.operations[index], run.frames[index]) for index in sorted(self.used) if run.frames[index]]
        own = {self.function_of(index) for index in sorted(self.used)}
        calls: dict[tuple[Function, Owner, int, str], set[int]] = {}
        for operation, frames in used:
            for frame in reversed(frames):
                function = function_at(frame.line, self._known)
                if frame.callee and function not in own and not function.name.endswith("forward"):
                    continue  # a wrapper
                lines = self.blocks.setdefault(function, {}).setdefault(frame.owner, {})
                steps = lines.setdefault(frame.line.number, [])
                if frame.callee:
                    calls.setdefault((function, frame.owner, frame.line.number, frame.callee), set()).add(
                        operation.index
                    )
                else:
                    steps.append((operation.index, ""))
        readers = self._readers()
        for (function, owner, number, callee), inside in calls.items():
            steps = self.blocks[function][owner][number]
            known = {index for index, _ in steps}
            returned = [index for index in sorted(inside - known) if readers.get(index, set()) - inside]
            computed = [index for index in returned if not _returns_input(run.operations[index])]
            steps += [(index, callee) for index in computed or returned]
            steps.sort()
        attending = {self.function_of(one.first) for one in run.operations.attentions}
        owners = {run.frames[one.first][0].owner for one in run.operations.attentions if run.frames[one.first]}
        inside = [function for function in self.blocks if owners & self.blocks[function].keys()]
        classes = {one.name.removesuffix("forward") for one in inside if one.name.endswith(".forward")}
        self._order: dict[Function, tuple[int, int]] = {}
        for at, function in enumerate(self.blocks):
            is_forward, is_method = function.name.endswith("forward"), function.name.startswith(tuple(classes))
            rank = (
                4 - is_forward
                if function not in inside
                else 0
                if is_forward
                else 2 - (is_method or function in attending)
            )
            self._order[function] = rank, at

    def _readers(self) -> dict[int, set[int]]:
        """The operations that read the results of each operation; −1 stands for the output."""
        found: dict[int, set[int]] = {}
        for reader, values in [(-1, self.run.operations.outputs)] + [
            (index, self.run.operations[index].inputs) for index in self.used
        ]:
            for value in values:
                if value.operation is not None:
                    found.setdefault(value.operation.index, set()).add(reader)
        return found

    def function_of(self, index: int) -> Function | None:
        """The function whose line called an operation."""
        frames = self.run.frames[index]
        return function_at(frames[0].line, self._known) if frames else None

    def rank(self, function: Function) -> tuple[int, int]:
        """The order of functions: attention first, then the other forward passes, each in the order in which they ran."""
        return self._order[function]

    def side(self, function: Function) -> dict[str, Any]:
        """The lines of a function, and the results of each line in each call."""
        calls = [
            {
                "path": path,
                "number": number,
                "lines": {
                    line: [[index + self.offset, what] for index, what in steps]
                    for line, steps in lines.items()
                    if steps
                },
            }
            for (path, number), lines in self.blocks[function].items()
        ]
        return {
            "file": os.path.basename(function.file),
            "name": function.name,
            "first": function.first,
            "lines": function.lines,
            "calls": calls,
        }


def _used(run: Operations) -> set[int]:
    """The operations that the output depends on."""
    left = [value.operation for value in run.outputs if value.operation is not None]
    found = {operation.index for operation in left}
    while left:
        for value in left.pop().inputs:
            if value.operation is not None and value.operation.index not in found:
                found.add(value.operation.index)
                left.append(value.operation)
    return found


def _returns_input(operation: Operation) -> bool:
    """Whether a result is one of the inputs itself, as of dropout in eval mode."""
    return operation.result.tensor is not None and _memory(operation.result) in map(_memory, operation.inputs)


Pair = tuple[Function | None, Function | None]


def _paired(sources: Sequence[_Source], pairs: Iterable[tuple[int, int]]) -> list[Pair]:
    """Each function with its counterpart: that of the same name, else the one with most counterparts of its operations."""
    mine = sorted(sources[0].blocks, key=sources[0].rank)
    if len(sources) == 1:
        return [(function, None) for function in mine]
    yours = sorted(sources[1].blocks, key=sources[1].rank)
    votes = Counter((sources[0].function_of(one), sources[1].function_of(other)) for one, other in pairs)
    ranked = sorted(
        votes, key=lambda pair: (getattr(pair[0], "name", "") != getattr(pair[1], "name", ""), -votes[pair])
    )
    found: dict[Function, Function] = {}
    for one, other in ranked:
        if one in mine and other in yours and one not in found and other not in found.values():
            found[one] = other
    by_name = {function.name: function for function in yours}
    for one in mine:
        other = by_name.get(one.name)
        if one not in found and other is not None and other not in found.values():
            found[one] = other
    alone = [(None, one) for one in yours if one not in found.values()]
    return [*((one, found.get(one)) for one in mine), *alone]


def _function(pair: Pair, sources: Sequence[_Source]) -> dict[str, Any]:
    """Two functions side by side; `rows` are the places of the lines that stand beside each other, if the lines differ."""
    sides = [None if one is None else source.side(one) for one, source in zip(pair, sources, strict=False)]
    rank = min(source.rank(one)[0] for one, source in zip(pair, sources, strict=False) if one is not None)
    found = {"sides": sides, "open": rank < 2}
    lines = [side["lines"] for side in sides if side is not None]
    if len(lines) == 2 and lines[0] != lines[1]:
        found["rows"] = list(_rows(*lines))
    return found


def _rows(mine: Sequence[str], yours: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    for _, begin, end, start, stop in SequenceMatcher(None, mine, yours, autojunk=False).get_opcodes():
        yield from zip_longest(range(begin, end), range(start, stop))


class _Numbers:
    """Crops the tensors of a view so that they fit in `ROOM`, and describes how each was computed.

    Of a large model, only some layers have numbers, that of `at` first; the others have ranges.
    """

    def __init__(self, sources: Sequence[_Source], at: str) -> None:
        self.arrays: list[bytes] = []
        self.operands: dict[str, dict[str, Any]] = {}
        """Inputs and weights that are operands of a shown arithmetic, by name."""
        self._offset = 0
        self._placed: dict[Any, dict[str, Any]] = {}
        """By memory, shape and strides: results that are their input, as of dropout, are kept once."""
        layers: dict[str, list[tuple[Value, Sequence[str]]]] = {"": [], layer_of(at): []}
        for source in sources:
            for index in sorted(source.used):
                operation = source.run.operations[index]
                values = layers.setdefault(layer_of(operation.address.module), [])
                values.append((operation.result, source.run.operations.axes(operation)))
                values += [(value, ()) for value in operation.inputs if value.operation is None]
        for self._crop in CROPS:
            self._layers = _fitting(layers, self._crop)
            if len(self._layers) == len(layers) or (self._crop <= LEAST and len(self._layers) > 1):
                break
        self.operations = [
            self._operation(source, operation) for source in sources for operation in source.run.operations
        ]

    def _operation(self, source: _Source, operation: Operation) -> dict[str, Any]:
        """The description of an operation and of its result."""
        axes = source.run.operations.axes(operation)
        is_used = operation.index in source.used
        is_kept = layer_of(operation.address.module) in self._layers
        return {
            "name": operation.name,
            "axes": axes,
            "module": operation.address.module,
            **(
                self._array(operation.result, axes, is_kept=is_kept)
                if is_used
                else {"shape": list(operation.result.shape)}
            ),
            "inputs": [self._operand(source, value) for value in operation.inputs] if is_used and is_kept else [],
            "how": _how(operation) if is_used and is_kept else None,
        }

    def _operand(self, source: _Source, value: Value) -> int | str:
        if value.operation is not None:
            return value.operation.index + source.offset
        name = f"{source.offset}:{value.name or 'constant'}"
        if name not in self.operands:
            self.operands[name] = self._array(value, (), is_kept=True)
        return name

    def _array(self, value: Value, axes: Sequence[str], *, is_kept: bool) -> dict[str, Any]:
        """The shape and range of a tensor, and the place of its first entries among the arrays."""
        found: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        tensor = value.tensor
        if tensor is None or not tensor.numel():
            return found
        if (key := (_memory(value), is_kept)) not in self._placed:
            numbers = (tensor.abs() if tensor.is_complex() else tensor).detach()
            size = _kept(value, axes, self._crop)
            self._placed[key] = {} if value.is_weight else _range(numbers.float().cpu())
            if is_kept and math.prod(size):
                kept = numbers[tuple(slice(n) for n in size)].float().cpu().contiguous().numpy().astype("<f4")
                self._placed[key] |= {"kept": list(kept.shape), "offset": self._offset}
                self.arrays.append(kept.tobytes())
                self._offset += kept.size
        return found | self._placed[key]


def layer_of(path: str) -> str:
    """The path of a module up to its first number: "model.layers.3" of "model.layers.3.mlp.act"; "" outside of layers."""
    parts = path.split(".")
    return next((".".join(parts[: at + 1]) for at, part in enumerate(parts) if part.isdigit()), "")


def _fitting(layers: dict[str, list[tuple[Value, Sequence[str]]]], crop: int) -> set[str]:
    """The layers whose numbers fit in `ROOM`, in their order."""
    found, sizes, total = set[str](), dict[Any, int](), 0
    for layer, values in layers.items():
        new = {_memory(value): 4 * math.prod(_kept(value, axes, crop)) for value, axes in values}
        total += sum(size for key, size in new.items() if key not in sizes)
        if total > ROOM:
            break
        sizes |= new
        found.add(layer)
    return found


def _memory(value: Value) -> Any:
    tensor = value.tensor
    if tensor is None or tensor.layout != torch.strided:
        return id(value)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _kept(value: Value, axes: Sequence[str], crop: int) -> tuple[int, ...]:
    """The numbers of entries of each axis that are embedded. A weight is embedded whole or not at all: sums need all of it."""
    if value.tensor is None or (value.is_weight and max(value.shape, default=0) > crop):
        return (0,)
    limits = [crop * (4 if axis in POSITIONS else 1) for axis in axes] or [crop] * len(value.shape)
    return tuple(map(min, value.shape, limits))


def _range(numbers: Tensor) -> dict[str, Any]:
    finite, n_infinite = numbers[numbers.abs() <= HUGE], int(numbers.isinf().sum())
    found: dict[str, Any] = {"low": _rounded(finite, torch.amin), "high": _rounded(finite, torch.amax)}
    n_nan = int(numbers.isnan().sum())
    return found | {"nan": n_nan, "infinite": n_infinite, "huge": numbers.numel() - finite.numel() - n_infinite - n_nan}


def _rounded(numbers: Tensor, of: Callable[[Tensor], Tensor]) -> float | None:
    if not numbers.numel():
        return None
    return float(np.format_float_positional(float(of(numbers)), precision=5, fractional=False))


_BINARY = {"add": "+", "sub": "−", "mul": "×", "div": "÷", "pow": "^"}


def _how(operation: Operation) -> dict[str, Any] | None:
    """How a number of the result follows from those of the inputs, if a view can show that."""
    name, inputs = operation.name, operation.inputs
    if name in ("matmul", "bmm", "mm") and len(inputs) == 2 and all(len(one.shape) > 1 for one in inputs):
        n = max(len(one.shape) for one in inputs)
        batch = "abcdefgh"[: n - 2]
        terms = [batch[n - len(one.shape) :] + end for one, end in zip(inputs, ("ik", "kj"), strict=True)]
        return {"kind": "product", "terms": [*terms, f"{batch}ij"]}
    if name == "linear" and len(inputs) >= 2 and len(inputs[1].shape) == 2:
        batch = "abcdefgh"[: len(inputs[0].shape) - 1]
        return {"kind": "product", "terms": [f"{batch}k", "jk", f"{batch}j"], "bias": len(inputs) > 2}
    if name == "einsum" and len(inputs) == 2 and "..." not in operation.args[0] and "->" in operation.args[0]:
        given, out = operation.args[0].replace(" ", "").split("->")
        return {"kind": "product", "terms": [*given.split(","), out]}
    if name == "softmax":
        dim = operation.args[1] if len(operation.args) > 1 else operation.kwargs.get("dim")
        return None if dim is None else {"kind": "softmax", "axis": int(dim) % len(operation.result.shape)}
    if name == "masked_fill":
        value = operation.args[2] if len(operation.args) > 2 else operation.kwargs.get("value")
        return {"kind": "mask", "value": str(value)} if isinstance(value, int | float) else None
    if name in _BINARY and len(inputs) <= 2:
        numbers = [one for one in operation.args if isinstance(one, int | float)]
        first = bool(operation.args) and not isinstance(operation.args[0], Value)
        constant = {"constant": numbers[0], "first": first} if len(inputs) == 1 and numbers else {}
        return {"kind": "binary", "sign": _BINARY[name], **constant} if len(inputs) == 2 or constant else None
    same = [one for one in inputs if one.shape == operation.result.shape]
    return {"kind": "function", "input": inputs.index(same[0])} if len(same) == 1 else None
