"""The first line of two modules whose tensors differ.

comparison = compare(run, changed)
comparison.first.line, comparison.first.reason      ("model.py:38", "softmax differs by up to 0.3.")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from xformer.program.operations import Operations
from xformer.program.record import Operation, SourceLine
from xformer.widgets.code_lines import Function, function_at, functions_of

CLOSE = 1e-5
"""Differences up to this fraction of the largest entry count as rounding."""


@dataclass(frozen=True)
class Difference:
    """The first operation whose result differs between two modules."""

    line: str
    """The line of the first module, as "model.py:38"."""
    operation: int
    """The index of its operation there; of the next one, if only the changed module has the operation."""
    reason: str
    """What differs, as a sentence."""


@dataclass(frozen=True)
class OperationPairs:
    """The operations of two modules, paired."""

    first: Difference | None
    """None if all results agree."""
    pairs: tuple[tuple[int, int], ...]
    """The indices of an operation and of its counterpart in the changed module."""
    differing: frozenset[int]
    """The operations of the first module whose results differ from those of their counterparts."""


def compare(one: Operations, other: Operations) -> OperationPairs:
    """Pair the operations of two modules, and find the first that computes something else than its counterpart.

    Operations of the same name and module are counterparts, in order. Where only one module has an operation, that is the
    difference if what reads it differs.
    """
    keys = [[(op.name, op.address.module) for op in ops] for ops in (one, other)]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_opcodes()
    pairs = [pair for kind, *block in blocks for pair in _pairs(*block, is_equal=kind == "equal")]
    reasons = {mine: _differs(one[mine], other[yours]) for mine, yours in pairs}
    yours = {after: reasons[before] for before, after in pairs}
    first = None
    for kind, begin, end, start, stop in blocks:
        if kind == "equal":
            found = next((one[at] for at in range(begin, end) if reasons[at] is not None), None)
            first = None if found is None else Difference(str(found.line or ""), found.index, str(reasons[found.index]))
        elif _matters(one, range(begin, end), reasons) or _matters(other, range(start, stop), yours):
            first = _missing(one, other, slice(begin, end), slice(start, stop))
        if first is not None:
            break
    return OperationPairs(first, tuple(pairs), frozenset(at for at, reason in reasons.items() if reason is not None))


def _pairs(begin: int, end: int, start: int, stop: int, *, is_equal: bool) -> Iterator[tuple[int, int]]:
    """The counterparts of two blocks of operations: all of equal ones, else the last ones, as one result replaces the other."""
    if is_equal:
        yield from zip(range(begin, end), range(start, stop), strict=True)
    elif end > begin and stop > start:
        yield end - 1, stop - 1


def _matters(run: Operations, block: range, reasons: Mapping[int, str | None]) -> bool:
    """Whether a block of operations ends in another result, or something that reads it differs or is the output."""
    if any(reasons.get(at) is not None for at in block):
        return True
    reached = {at for at in block if at not in reasons}
    for operation in run[block.stop :] if reached else ():
        if any(value.operation is not None and value.operation.index in reached for value in operation.inputs):
            if operation.index not in reasons:
                reached.add(operation.index)
            elif reasons[operation.index] is not None:
                return True
    return any(value.operation is not None and value.operation.index in reached for value in run.outputs)


def _missing(one: Operations, other: Operations, here: slice, there: slice) -> Difference | None:
    """The difference where the modules have different operations; None if those change no number, or end in the same result."""
    mine, yours = ([op for op in ops if not _changes_nothing(op)] for ops in (one[here], other[there]))
    if not (mine or yours) or (mine and yours and _differs(mine[-1], yours[-1]) is None):
        return None
    if mine and yours:
        names = (" and ".join(dict.fromkeys(op.name for op in found)) for found in (mine, yours))
        reason = "{} here, and {} in the changed module.".format(*names)
    elif mine:
        reason = f"The changed module has no {mine[0].name} here."
    else:
        reason = f"The changed module has {yours[0].name} here."
    at = mine[0].index if mine else min(here.start, len(one) - 1)
    line = mine[0].line if mine else _counterpart(yours[0].line, one)
    return Difference(str(line or one[at].line or ""), at, reason)


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
