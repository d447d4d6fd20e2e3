"""The lines of source that a forward pass ran, with the module whose code each of them is.

run = run_code(module, inputs)
run.frames[5]         the lines that were running in operation 5, innermost first
functions_of(file)    the functions of a source file
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from xformer.doctor.copies import with_shared_weights
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.program import record
from xformer.program.inputs import ModuleInputs, call_plainly, named_inputs
from xformer.program.module_state import parts_of, unwrapped
from xformer.program.operations import KEPT_BYTES, Operations, operations
from xformer.program.record import Operation, SourceLine, makes_tensors
from xformer.tape import Tape

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_PROGRAM = os.path.dirname(record.__file__) + os.sep
Owner = tuple[str, int]
"""A module by its path, and the number of its earlier calls."""


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


class CallFrame(NamedTuple):
    """A line that was running in an operation."""

    line: SourceLine
    owner: Owner
    """The innermost module outside PyTorch that was running there: the one whose code it is."""
    callee: str = ""
    """What the line called: the path of a module, or a function. Empty for the line that called the operation itself."""


@dataclass(frozen=True, eq=False)
class CodeRun:
    """A recorded pass."""

    operations: Operations
    frames: tuple[tuple[CallFrame, ...], ...]
    """For each operation the lines that were running, innermost first. PyTorch's own code is left out."""
    steps: str = ""
    """How the pass differs from the module's own, as a sentence; empty if it does not."""

    def only(self, may_show: Callable[[str], bool]) -> CodeRun:
        """The same pass without the lines of the files that may not be shown."""
        files = {frame.line.file for frames in self.frames for frame in frames}
        shown = {file for file in files if may_show(file)}
        kept = (tuple(frame for frame in frames if frame.line.file in shown) for frames in self.frames)
        return replace(self, frames=tuple(kept))


def run_code(module: nn.Module, inputs: ModuleInputs, *, keep_bytes: int = KEPT_BYTES) -> CodeRun:
    """Record a pass in which attention is computed step by step, where the module has a way to do so.

    Our own model gets a tape. A copy of a Transformers model with the same weights gets eager attention and no cache.

    Args:
        module: Any module.
        inputs: One tensor, several positional arguments, or named arguments.
        keep_bytes: The limit of the results that are kept; later ones have shapes only.
    """
    module, named, steps = unwrapped(module), named_inputs(inputs), ""
    if isinstance(module, Transformer):
        named |= {"tape": Tape()}
    elif hasattr(module, "set_attn_implementation"):
        module, steps = _in_steps(module)
    n_weights = sum(weight.nbytes for weight in (*module.parameters(), *module.buffers()))
    with _Stacks() as stacks:
        found = operations(module, named, keep_bytes=keep_bytes + n_weights)
    return CodeRun(found, tuple(_frames(found, stacks.seen, module)), steps)


def _in_steps(module: nn.Module) -> tuple[nn.Module, str]:
    try:
        other = with_shared_weights(module)
        other.set_attn_implementation("eager")  # type: ignore[operator]
    except (InputError, ValueError, ImportError):  # it cannot be copied, or has no such attention
        return module, ""
    for part in parts_of(other):
        if not isinstance(part, nn.Module) and getattr(part, "use_cache", False):
            part.use_cache = False
    return other, "Attention is computed step by step (eager), without a cache."


class _Stacks(TorchFunctionMode):
    """Keeps the lines that are running in each operation. Entered before a recorder, it sees the same functions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Callable[..., Any], list[tuple[SourceLine, int]]]] = []
        """Each function, and the lines, innermost first, with the number of modules that each line has entered."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        if makes_tensors(func, args, kwargs):
            self.seen.append((func, _running_lines()))
        return returned


def _running_lines() -> list[tuple[SourceLine, int]]:
    found: list[tuple[SourceLine, int]] = []
    frame, n_modules = inspect.currentframe(), 0
    entering = getattr(nn.Module.__call__, "__code__", None)
    while frame is not None and frame.f_code is not call_plainly.__code__:
        code = frame.f_code
        if code is entering:
            n_modules += 1
        elif not code.co_filename.startswith((_TORCH, _PROGRAM, _HERE)):
            found.append((SourceLine(code.co_filename, frame.f_lineno, code.co_name), n_modules))
        frame = frame.f_back
    return found if frame is not None else []  # else it is no part of the module's call


def _frames(
    run: Operations, seen: Sequence[tuple[Callable[..., Any], list[tuple[SourceLine, int]]]], module: nn.Module
) -> Iterator[tuple[CallFrame, ...]]:
    """The frames of each operation: those of the next seen function that is the same one, called at the same line."""
    at = 0
    for operation in run:
        same = (
            index
            for index in range(at, len(seen))
            if seen[index][0] == operation.function and seen[index][1] and seen[index][1][0][0] == operation.line
        )
        index = next(same, None)
        if index is not None:
            at = index + 1
            yield tuple(_owned(operation, seen[index][1], module))
        elif operation.line is None or operation.line.file.startswith(_HERE):  # PyTorch's code alone
            yield ()
        else:
            yield (CallFrame(operation.line, owner_of(operation.running, module)),)


def _owned(operation: Operation, lines: Sequence[tuple[SourceLine, int]], module: nn.Module) -> Iterator[CallFrame]:
    callee, entered = "", 0
    for line, n_modules in lines:
        n = len(operation.running) - n_modules
        if callee and n_modules > entered:  # it called a module, whose code called the function below
            callee = operation.running[n][0]
        yield CallFrame(line, owner_of(operation.running[:n], module), callee)
        callee, entered = line.function, n_modules


def owner_of(running: Sequence[Owner], module: nn.Module) -> Owner:
    """The innermost of the running modules that is not PyTorch's."""
    own = [one for one in running if not type(module.get_submodule(one[0])).__module__.startswith("torch.")]
    return own[-1] if own else ("", 0)
