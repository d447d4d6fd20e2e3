"""The source of a module, with what each of its lines computed.

    xformer.code_view(module, inputs)                     in a notebook
    xformer.code_view(module, inputs).save_html("code.html")
    xformer.code_view(module, inputs, changed=other)      marks the first line whose tensor differs

Beside a line stand the shape of its result with the names of its axes, a thumbnail and the range. A line that ran in several
modules has a chooser. A click enlarges the tensor; a click on a cell shows the arithmetic of that number.
"""

from __future__ import annotations

import ast
import json
import linecache
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xformer.files import write_atomically
from xformer.model import Transformer
from xformer.program.inputs import ModuleInputs, named_inputs
from xformer.program.operations import Operations, operations
from xformer.program.record import Operation, SourceLine, Value
from xformer.tape import Tape
from xformer.viz.theme import DIVERGING, SEQUENTIAL, in_both_themes
from xformer.widgets.page import stand_alone_page

ROOM = 2_000_000
"""Largest size of all numbers in bytes; base64 adds a third."""
CROPS = (256, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4)
"""The largest numbers of entries of an axis that are embedded, tried in this order."""
CLOSE = 1e-5
"""Differences up to this fraction of the largest entry count as rounding."""


@dataclass(frozen=True)
class Function:
    """A function of the source that called operations."""

    file: str
    name: str
    """The qualified name, as "Attention.forward"."""
    first: int
    last: int

    @property
    def lines(self) -> list[str]:
        """Its lines, without the indentation that all of them share."""
        lines = [linecache.getline(self.file, number).rstrip("\n") for number in range(self.first, self.last + 1)]
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        return [line[indent:] for line in lines]


def functions_of(file: str) -> list[Function]:
    """Every function of a source file, outer ones before inner ones; empty if the file cannot be read."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return list(_functions(tree, file, ""))


def _functions(node: ast.AST, file: str, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}" if prefix else child.name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(file, name, child.lineno, child.end_lineno or child.lineno)
        yield from _functions(child, file, name)


def function_at(line: SourceLine, known: dict[str, list[Function]]) -> Function:
    """The innermost function that contains a line; the line alone, if its file cannot be read."""
    if line.file not in known:
        known[line.file] = functions_of(line.file)
    inside = [one for one in known[line.file] if one.first <= line.number <= one.last]
    return inside[-1] if inside else Function(line.file, line.function, line.number, line.number)


def owner_of(operation: Operation, module: nn.Module) -> tuple[str, int]:
    """The innermost running module that is not PyTorch's, with the number of its earlier calls: the one whose code it is."""
    own = [one for one in operation.running if not _is_pytorchs(module, one[0])]
    return own[-1] if own else ("", 0)


def _is_pytorchs(module: nn.Module, path: str) -> bool:
    return type(module.get_submodule(path)).__module__.startswith("torch.")


@dataclass(frozen=True)
class Difference:
    """The first operation whose result differs between two modules."""

    line: str
    """The line of the first module, as "model.py:38"."""
    operation: int
    """The index of its operation there; of the next one, if only the changed module has the operation."""
    reason: str
    """What differs, as a sentence."""


def first_difference(one: Operations, other: Operations) -> Difference | None:
    """The first operation that computes something else than its counterpart; None if all results agree.

    Operations of the same name and module are counterparts, in order. Where only one module has an operation, that is the
    difference, unless it changes no number.
    """
    keys = [[(op.name, op.address.module) for op in ops] for ops in (one, other)]
    for kind, begin, end, start, stop in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal":
            for first, second in zip(one[begin:end], other[start:stop], strict=True):
                if (reason := _differs(first, second)) is not None:
                    return Difference(str(first.line or ""), first.index, reason)
            continue
        mine = [op for op in one[begin:end] if not _changes_nothing(op)]
        yours = [op for op in other[start:stop] if not _changes_nothing(op)]
        if not (mine or yours) or (mine and yours and _differs(mine[-1], yours[-1]) is None):
            continue
        if mine and yours:
            names = (" and ".join(dict.fromkeys(op.name for op in found)) for found in (mine, yours))
            reason = "{} here, and {} in the changed module.".format(*names)
        elif mine:
            reason = f"The changed module has no {mine[0].name} here."
        else:
            reason = f"The changed module has {yours[0].name} here."
        at = mine[0].index if mine else min(begin, len(one) - 1)
        line = mine[0].line if mine else _counterpart(yours[0].line, one)
        return Difference(str(line or one[at].line or ""), at, reason)
    return None


def _changes_nothing(operation: Operation) -> bool:
    """Whether a result is one of the inputs, as of dropout in eval mode."""
    result = operation.result.tensor
    if result is None:
        return False
    inputs = (value.tensor for value in operation.inputs if value.shape == operation.result.shape)
    return any(tensor is not None and tensor.dtype == result.dtype and torch.equal(tensor, result) for tensor in inputs)


def _counterpart(line: SourceLine | None, run: Operations) -> SourceLine | None:
    """The line of a run's own source that stands where `line` stands in the same function of another source."""
    if line is None:
        return None
    known: dict[str, list[Function]] = {}
    theirs = function_at(line, known)
    files = dict.fromkeys(one.line.file for one in run if one.line is not None)
    for file in files:
        for mine in functions_of(file):
            if mine.name != theirs.name:
                continue
            place = line.number - theirs.first
            for _, begin, end, start, stop in SequenceMatcher(None, mine.lines, theirs.lines).get_opcodes():
                if start <= place < stop:
                    at = min(begin + place - start, max(begin, end - 1))
                    return SourceLine(file, mine.first + at, mine.name)
    return None


def _differs(one: Operation, other: Operation) -> str | None:
    """What differs between two operations: their constants, shapes or numbers; None if nothing does."""
    mine, yours = (tuple(found.result.shape) for found in (one, other))
    first, second = _numbers(one), _numbers(other)
    largest_difference = math.inf
    if mine == yours:
        if first is None or second is None:
            return None
        apart = (first - second).abs().nan_to_num(0.0)
        is_alike = torch.equal(first.isnan(), second.isnan()) and torch.equal(first.isinf(), second.isinf())
        largest, largest_difference = float(first.nan_to_num(0.0, 0.0, 0.0).abs().max()), float(apart.max())
        if is_alike and largest_difference <= CLOSE * max(largest, 1e-30):
            return None
    constants = [[_constant(value) for value in (*found.args, *found.kwargs.values())] for found in (one, other)]
    if constants[0] != constants[1]:
        here, there = (", ".join(filter(None, found)) or "no constant" for found in constants)
        return f"{one.name} with {here} here, and with {there} in the changed module."
    if mine != yours:
        return f"{one.name} returns {list(mine)} here, and {list(yours)} in the changed module."
    return f"{one.name} differs by up to {largest_difference:.3g}."


def _numbers(operation: Operation) -> Tensor | None:
    tensor = operation.result.tensor
    if tensor is None or not tensor.numel():
        return None
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().double().cpu()


def _constant(value: Any) -> str:
    """An argument that is no tensor, as text; "" for tensors."""
    if isinstance(value, tuple | list):
        inside = [_constant(one) for one in value]
        return f"({', '.join(inside)})" if all(inside) else ""
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
        if isinstance(value, bool | int | str | slice)
        else ""
    )


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
    module: nn.Module, inputs: ModuleInputs, *, changed: nn.Module | None = None, tokens: Sequence[str] | None = None
) -> CodeView:
    """Show a module's own source, and beside every line what it computed for these inputs.

    Args:
        module: Any module; its source is that of the functions that its forward pass calls.
        inputs: One tensor, several positional arguments, or named arguments.
        changed: A second module that is called with the same inputs; the first line whose tensor differs is marked.
        tokens: The labels of the positions; by default token ids, or numbers.

    Returns:
        The view: the output of a notebook's cell, or a file with `save_html`.

    Example:
        >>> import torch, xformer
        >>> view = xformer.code_view(xformer.load("checkpoints/reverse").model, torch.tensor([[3, 7, 12, 9]]))
        >>> "<iframe" in view._repr_html_()
        True
    """
    run = operations_in_steps(module, inputs)
    other = None if changed is None else operations_in_steps(changed, inputs)
    difference = None if other is None else first_difference(run, other)
    caption = [f"{type(module).__name__}: {len(run)} operations"]
    if changed is not None:
        where = f"{difference.line}: {difference.reason}" if difference else "No tensor differs."
        caption.append(f"Compared with {type(changed).__name__}. {where}")
    labels = list(tokens) if tokens is not None else _labels(inputs)
    data = {"data": code_data(run, module, labels, difference)}
    return CodeView(run, difference, stand_alone_page("code_view", "code", data, caption, title="Code and tensors"))


def operations_in_steps(module: nn.Module, inputs: ModuleInputs) -> Operations:
    """The operations of a module; our own model computes attention step by step instead of in a fused function."""
    own = {"tape": Tape()} if isinstance(module, Transformer) else {}
    return operations(module, named_inputs(inputs) | own)


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


def _labels(inputs: ModuleInputs) -> list[str]:
    ids = next((one for one in named_inputs(inputs).values() if isinstance(one, Tensor) and one.dim() >= 1), None)
    if ids is None or ids.is_floating_point() or ids.dim() > 2:
        return []
    return [str(int(token)) for token in (ids if ids.dim() == 1 else ids[0])]


def code_data(
    run: Operations, module: nn.Module, labels: Sequence[str] = (), difference: Difference | None = None
) -> bytes:
    """Pack the view: a JSON header with its length in front, then the numbers as 32-bit floats.

    Args:
        run: The operations, with their tensors.
        module: The module.
        labels: The labels of the positions.
        difference: The first difference from another module.
    """
    known: dict[str, list[Function]] = {}
    blocks: dict[Function, dict[tuple[str, int], dict[int, list[int]]]] = {}
    used = _used(run)
    for operation in run:
        if operation.line is None or operation.index not in used:
            continue
        calls = blocks.setdefault(function_at(operation.line, known), {})
        lines = calls.setdefault(owner_of(operation, module), {})
        lines.setdefault(operation.line.number, []).append(operation.index)
    packed = _Numbers(run)
    attending = {owner_of(run[one.first], module) for one in run.attentions}

    def place(function: Function) -> tuple[bool, bool]:
        """Attention first, then the other forward passes, each in the order in which they ran."""
        return not attending & blocks[function].keys(), not function.name.endswith("forward")

    header = {
        "functions": [
            {
                "file": os.path.basename(function.file),
                "name": function.name,
                "first": function.first,
                "lines": function.lines,
                "open": not place(function)[0],
                "calls": [{"path": path, "number": number, "lines": lines} for (path, number), lines in calls.items()],
            }
            for function, calls in sorted(blocks.items(), key=lambda one: place(one[0]))
        ],
        "operations": [packed.operation(operation) for operation in run],
        "operands": packed.operands,
        "labels": list(labels),
        "difference": difference
        and {"operation": difference.operation, "reason": difference.reason, "line": difference.line},
        "colours": {"diverging": in_both_themes(DIVERGING), "sequential": in_both_themes(SEQUENTIAL)},
    }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<II", 0, len(text)) + text + b"".join(packed.arrays)


class _Numbers:
    """Crops the tensors of a run so that they fit in `ROOM`, and describes how each was computed."""

    def __init__(self, run: Operations) -> None:
        self._run = run
        self.arrays: list[bytes] = []
        self.operands: dict[str, dict[str, Any]] = {}
        """Inputs and weights that are operands of a shown arithmetic, by name."""
        self._offset = 0
        shapes = [tuple(operation.result.shape) for operation in run]
        shapes += [tuple(value.shape) for operation in run for value in operation.inputs if value.operation is None]
        self._crop = next((crop for crop in CROPS if sum(_n_bytes(shape, crop) for shape in shapes) <= ROOM), CROPS[-1])

    def operation(self, operation: Operation) -> dict[str, Any]:
        """The description of an operation and of its result."""
        return {
            "name": operation.name,
            "axes": self._run.axes(operation),
            "module": operation.address.module,
            **self._array(operation.result),
            "inputs": [self._operand(value) for value in operation.inputs],
            "how": _how(operation),
        }

    def _operand(self, value: Value) -> int | str:
        if value.operation is not None:
            return value.operation.index
        name = value.name or "constant"
        if name not in self.operands:
            self.operands[name] = self._array(value)
        return name

    def _array(self, value: Value) -> dict[str, Any]:
        """The shape and range of a tensor, and the place of its first entries among the arrays."""
        found: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        tensor = value.tensor
        if tensor is None or not tensor.numel():
            return found
        numbers = (tensor.abs() if tensor.is_complex() else tensor).detach().float().cpu()
        finite = numbers[numbers.isfinite()]
        found |= {"low": _rounded(finite, torch.amin), "high": _rounded(finite, torch.amax)}
        found |= {"nan": int(numbers.isnan().sum()), "infinite": int(numbers.isinf().sum())}
        kept = numbers[tuple(slice(self._crop) for _ in numbers.shape)].contiguous().numpy().astype("<f4")
        found |= {"kept": list(kept.shape), "offset": self._offset}
        self.arrays.append(kept.tobytes())
        self._offset += kept.size
        return found


def _n_bytes(shape: Sequence[int], crop: int) -> int:
    return 4 * math.prod(min(size, crop) for size in shape)


def _rounded(numbers: Tensor, of: Callable[[Tensor], Tensor]) -> float | None:
    return (
        float(np.format_float_positional(float(of(numbers)), precision=5, fractional=False))
        if numbers.numel()
        else None
    )


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
