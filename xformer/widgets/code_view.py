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
from xformer.program.inputs import ModuleInputs, named_inputs
from xformer.program.operations import Operations, operations
from xformer.program.record import Operation, SourceLine, Value
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
    changed_line: str
    """That of the changed module."""
    operation: int
    changed_operation: int
    reason: str
    """What differs, as a sentence."""


def first_difference(one: Operations, other: Operations) -> Difference | None:
    """The first operation that computes something else than its counterpart; None if all results agree.

    Operations of the same name and module are counterparts, in order. An operation that only one module has counts, if a
    result after it differs.
    """
    keys = [[(op.name, op.address.module) for op in ops] for ops in (one, other)]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    pairs = [(block.a + at, block.b + at) for block in blocks for at in range(block.size)]
    for place, (first, second) in enumerate(pairs):
        reason = _differs(one[first], other[second])
        if reason is None:
            continue
        before = pairs[place - 1] if place else (-1, -1)
        if second > before[1] + 1 and _uses(other[second], range(before[1] + 1, second)):
            second = before[1] + 1  # an operation that only the changed module has
            reason = f"Only the changed module calls {other[second].name} here."
        elif first > before[0] + 1 and _uses(one[first], range(before[0] + 1, first)):
            first = before[0] + 1
            reason = f"Only the first module calls {one[first].name} here."
        lines = [str(ops[at].line or "") for ops, at in ((one, first), (other, second))]
        return Difference(lines[0], lines[1], first, second, reason)
    return None


def _uses(operation: Operation, unmatched: range) -> bool:
    """Whether an operation reads the result of an operation that has no counterpart."""
    return any(value.operation is not None and value.operation.index in unmatched for value in operation.inputs)


def _differs(one: Operation, other: Operation) -> str | None:
    """What differs between two operations: their constants, shapes or numbers; None if nothing does."""
    first, second = one.result.tensor, other.result.tensor
    if tuple(one.result.shape) != tuple(other.result.shape):
        return f"{one.name} returns {list(one.result.shape)}, and {list(other.result.shape)} in the changed module."
    if first is None or second is None or first.dtype != second.dtype or not first.numel():
        return None
    a, b = (
        first.double().cpu() if not first.is_complex() else first.abs().double(),
        second.double().cpu() if not second.is_complex() else second.abs().double(),
    )
    apart = (a - b).abs().nan_to_num(0.0)
    if bool((a.isnan() == b.isnan()).all()) and bool((a.isinf() == b.isinf()).all()):
        largest = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max())
        if float(apart.max()) <= CLOSE * max(largest, 1e-30):
            return None
    return f"{one.name} differs by up to {float(apart.max()):.3g}."


@dataclass(frozen=True, eq=False)
class CodeView:
    """The source of a module with its tensors. Shown in a notebook, or saved as a page that works without a network."""

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
    run = operations(module, inputs)
    other = None if changed is None else operations(changed, inputs)
    difference = None if other is None else first_difference(run, other)
    caption = [f"{type(module).__name__}: {len(run)} operations"]
    if changed is not None:
        where = f"{difference.line}: {difference.reason}" if difference else "No tensor differs."
        caption.append(f"Compared with {type(changed).__name__}. {where}")
    labels = list(tokens) if tokens is not None else _labels(inputs)
    data = {"data": code_data(run, module, labels, difference)}
    return CodeView(run, difference, stand_alone_page("code_view", "code", data, caption, title="Code and tensors"))


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
    for operation in run:
        if operation.line is None:
            continue
        calls = blocks.setdefault(function_at(operation.line, known), {})
        lines = calls.setdefault(owner_of(operation, module), {})
        lines.setdefault(operation.line.number, []).append(operation.index)
    packed = _Numbers(run)
    header = {
        "functions": [
            {
                "file": os.path.basename(function.file),
                "name": function.name,
                "first": function.first,
                "lines": function.lines,
                "calls": [{"path": path, "number": number, "lines": lines} for (path, number), lines in calls.items()],
            }
            for function, calls in blocks.items()
        ],
        "operations": [packed.operation(operation) for operation in run],
        "operands": packed.operands,
        "labels": list(labels),
        "difference": None if difference is None else {"operation": difference.operation, "reason": difference.reason},
        "colours": {"diverging": in_both_themes(DIVERGING), "sequential": in_both_themes(SEQUENTIAL)},
    }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<II", len(text), 0) + text + b"".join(packed.arrays)


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
