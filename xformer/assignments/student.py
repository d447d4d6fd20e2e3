"""Run a student's code on the cases of a part, and find the line at which a known mistake first shows in its numbers."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.assignments.task import TaskCase, TaskPart, Wrong
from xformer.doctor.check import Finding
from xformer.doctor.diagnose import diagnose
from xformer.errors import AssignmentError
from xformer.program.record import Operation, Program, Recorder, SourceLine, watched

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


@dataclass(frozen=True)
class SourcePlace:
    """A line of the student's code."""

    line: str = ""
    """As "solution.py:38"; empty if it is not known."""
    text: str = ""


NOWHERE = SourcePlace()


@dataclass(frozen=True)
class Problem:
    """Why there are no numbers.

    Attributes:
        cause: "not_written", "raises_error", "wrong_type", "changes_its_input", "no_gradient", "time_limit", "memory_limit", or
            "stopped_python".
        sentence: What happened.
        place: Where.
    """

    cause: str
    sentence: str
    place: SourcePlace = NOWHERE


@dataclass(frozen=True)
class Ran:
    """The numbers of one case, or the problem."""

    outputs: Mapping[str, Tensor]
    problem: Problem | None = None


def run_case(part: TaskPart, function: Callable[..., Any], case: TaskCase) -> Ran:
    """Run one case on copies of its inputs. No exception of the student's code gets out."""
    inputs = _copied(case.inputs)
    leaves = _leaves(inputs) if case.with_gradient else {}
    for leaf in leaves.values():
        leaf.requires_grad_(True)
    before = _copied(inputs)
    try:
        torch.manual_seed(0)
        with nullcontext() if case.with_gradient else torch.no_grad():
            made = function if part.make is None else part.make(function, inputs)
            returned = part.run(made, inputs)
        outputs = {name: _tensor(name, one, function) for name, one in returned.items()}
        if changed := [name for name, one in inputs.items() if not _same(one, before[name])]:
            return Ran({}, Problem("changes_its_input", f"It changes its argument `{changed[0]}`; work on a copy."))
        if leaves:
            gradients = _gradients(outputs, leaves)
            outputs = {name: one.detach() for name, one in outputs.items()} | gradients
    except AssignmentError as error:
        cause = "no_gradient" if "gradient" in str(error) else "wrong_type"
        return Ran({}, Problem(cause, str(error)))
    except Exception as error:  # whatever the student's code raises
        return Ran({}, problem_of(error))
    return Ran({name: one.detach().cpu() for name, one in outputs.items()})


def _leaves(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: one for name, one in inputs.items() if isinstance(one, Tensor) and one.is_floating_point()}


def _gradients(outputs: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of a weighted sum of the outputs."""
    floats = [one for one in outputs.values() if one.is_floating_point()]
    if not any(one.requires_grad for one in floats):
        raise AssignmentError(
            "Its result has no gradient, so that nothing could be learned; do not use detach or NumPy here."
        )
    total = sum((one * torch.arange(1, one.numel() + 1).view(one.shape).cos()).sum() for one in floats)
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    return {
        f"gradient of {name}": torch.zeros_like(leaf) if one is None else one
        for (name, leaf), one in zip(leaves.items(), found, strict=True)
    }


def problem_of(error: BaseException) -> Problem:
    """What an exception of the student's code is, as one sentence with the line that raised it."""
    place = _place_of(error)
    if isinstance(error, NotImplementedError):
        return Problem("not_written", "It is not written yet.", place)
    if isinstance(error, TimeoutError):
        return Problem("time_limit", str(error), place)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return Problem("memory_limit", "It asked for more memory than it may use.", place)
    text = " ".join(str(error).split())
    return Problem("raises_error", f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__, place)


def _place_of(error: BaseException) -> SourcePlace:
    """The innermost line of the student's code in a traceback, or the line of a syntax error."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(_LIBRARIES):
        return _place(error.filename, error.lineno or 0, (error.text or "").strip())
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_students(one.filename)]
    return _place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].line or "") if frames else NOWHERE


def _place(file: str, number: int, text: str) -> SourcePlace:
    """A line by the name of its file, or as a line of a cell: a kernel gives each cell a file of its own."""
    return SourcePlace(f"{'cell' if 'ipykernel_' in file else Path(file).name}:{number}", text)


def _is_students(file: str) -> bool:
    return not file.startswith((*_LIBRARIES, "<frozen")) and "site-packages" not in file


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one.detach().nan_to_num(7.0), other.detach().nan_to_num(7.0))
    if isinstance(one, Mapping):
        return all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return True


def _tensor(name: str, value: Any, function: Callable[..., Any]) -> Tensor:
    if not isinstance(value, Tensor) and type(value).__module__ == "numpy":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value
    what = "the result" if name == "output" else f"`{name}`"
    raise AssignmentError(f"It returns a {type(value).__name__} for {what}; it should be a tensor.")


@torch.enable_grad()
def diagnosed(part: TaskPart, make: Callable[..., Any], case: TaskCase) -> Problem | None:
    """Return what the doctor finds in a model, compared with the right one; None for nothing.

    The model is the one of a case, or has the part inside, of which then only the formulas are read.
    """
    inputs = {name: one for name, one in case.inputs.items() if name not in ("sizes", "weights")}
    models = [one if part.make is None else part.make(one, case.inputs) for one in (make, part.right)]
    if part.model is not None:
        models = [part.model(one) for one in models]
        with suppress(Exception):  # a part may fail on other inputs
            found = diagnose(models[0], torch.arange(14).view(2, 7), checks=["formula"], spec=models[1]).broken
            return _as_problem(found[0]) if found and found[0].cause else None
        return None
    loss = {"loss": lambda model, tokens: model.loss(tokens)} if hasattr(models[1], "loss") else {}
    broken = diagnose(models[0], inputs, spec=models[1], **loss).broken  # type: ignore[arg-type]
    return _as_problem(broken[0]) if broken else None


def _as_problem(finding: Finding) -> Problem:
    text = next((one.text for one in finding.formulas if one.line == finding.line), "")
    is_around = (
        Path(__file__).parent / "tasks" / finding.line.partition(":")[0]
    ).is_file()  # the model around the part
    return Problem(finding.cause, finding.whole_sentence, NOWHERE if is_around else SourcePlace(finding.line, text))


# ── the line ──


@dataclass(frozen=True)
class _Recording:
    """The numbers of a run, by operation."""

    program: Program

    @property
    def tensors(self) -> Iterator[tuple[Operation, Float[Tensor, "..."]]]:
        """The results of its operations, in order."""
        for operation in self.program.operations:
            for value in operation.results:
                if value.tensor is not None and value.tensor.numel() and not value.tensor.is_complex():
                    yield operation, value.tensor.double()


def _recorded(part: TaskPart, function: Callable[..., Any], case: TaskCase) -> _Recording:
    """Record a run. What it raises at the end does not matter: its operations up to there are known."""
    inputs = _copied(case.inputs)
    torch.manual_seed(0)
    with suppress(Exception), torch.no_grad():  # the case is known to fail
        made = function if part.make is None else part.make(function, inputs)
        owner = made if isinstance(made, nn.Module) else nn.Module()
        recorder = Recorder(owner, inputs, keep_bytes=64 * 1024**2, with_callers=True)
        with suppress(Exception), watched(owner, recorder):
            part.run(made, inputs)
        return _Recording(recorder.finish(()))
    return _Recording(Program())


def locate(part: TaskPart, function: Callable[..., Any], case: TaskCase, mistakes: Sequence[Wrong]) -> SourcePlace:
    """Find the line of the student's code at which the numbers become those of the wrong formulas.

    An operation shows a mistake if its result is one that the wrong formula computes and the right one does not. A student may
    compute in other shapes, or number by number: then the numbers themselves are compared, for each line.

    Args:
        part: The part.
        function: The student's function or class.
        case: A case that fails.
        mistakes: What gives the student's numbers: one mistake, maybe with several numbers. What is missing is missing after
            the line whose result is used.

    Returns:
        The line; an empty place if no line shows it.
    """

    def tensors(change: Mapping[str, Any]) -> list[Tensor]:
        return [one for _, one in _recorded(part, partial(part.right, **change), case).tensors]

    right = [one.double() for one in _all_tensors(case.inputs)]
    for change in ({}, *part.styles, *(one.beyond for one in mistakes if one.beyond is not None)):
        right += tensors(change)
    changes = [{**style, **one.change} for one in mistakes for style in ({}, *part.styles)]
    wrong = [one for change in changes for one in tensors(change) if bool(one.any())]  # zeros are there to be filled
    known_right = _Tensors(right)
    new = [one for one in wrong if one not in known_right]
    own = _recorded(part, function, case)
    known = [one for one in own.program.operations if _line(one, part) is not None]
    operation = _first(own, part, new, _only_in(new, right)) or next(reversed(known), None)
    if operation is not None and mistakes[0].is_missing:
        producers = [one.operation for one in operation.inputs if one.operation is not None and one.is_from_inputs]
        operation = next((one for one in producers if _line(one, part) is not None), operation)
    line = None if operation is None else _line(operation, part)
    return NOWHERE if line is None else _place(line.file, line.number, line.text)


def _first(own: _Recording, part: TaskPart, new: Sequence[Tensor], numbers: Tensor) -> Operation | None:
    """The first operation that shows the wrong formula: by its result, or by the numbers of its line."""
    known_wrong = _Tensors(new)
    whole = next((one for one, result in own.tensors if result in known_wrong), None)
    by_line: dict[SourceLine, list[Tensor]] = {}
    firsts: dict[SourceLine, Operation] = {}
    for operation, result in own.tensors:
        if (line := _line(operation, part)) is not None:
            firsts.setdefault(line, operation)
            by_line.setdefault(line, []).append(_telling(result))
    for line, found in by_line.items():
        every = torch.cat(found)
        if len(every) and float(_are_in(every, numbers).double().mean()) > 0.5:
            other = firsts[line]
            return other if whole is None or other.index < whole.index else whole
    return whole


def _line(operation: Operation, part: TaskPart) -> SourceLine | None:
    """The student's line of an operation: the innermost that is not in a function of another task."""
    lines = (one for one in operation.callers if _is_students(one.file))
    return next((one for one in lines if one.function.split(".")[0] not in part.uses), None)


class _Tensors:
    """Some tensors, by shape. Axes of size 1 do not count, and numbers beyond a million are infinite."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for one in map(self._plain, tensors):
            by_shape.setdefault(one.shape, []).append(one)
        self._stacks = {shape: torch.stack(some) for shape, some in by_shape.items()}

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether one of them has the same numbers, to rounding."""
        one = self._plain(tensor)
        if (stack := self._stacks.get(one.shape)) is None:
            return False
        finite = one[one.isfinite()]
        size = float(finite.abs().max()) if len(finite) else 1.0
        close = torch.isclose(stack, one.expand_as(stack), rtol=1e-5, atol=1e-6 * size, equal_nan=True)
        return bool(close.flatten(1).all(dim=1).any()) if one.dim() else bool(close.any())

    @staticmethod
    def _plain(tensor: Tensor) -> Tensor:
        one = tensor.squeeze()
        return torch.where(one.abs() < 1e6, one, one.sign() * math.inf)


def _telling(tensor: Tensor) -> Float[Tensor, "n"]:
    """The numbers that could come from one place only: neither infinite nor whole."""
    flat = tensor.flatten()
    return flat[flat.isfinite() & ((flat - flat.round()).abs() > 1e-6)]


def _only_in(some: Sequence[Tensor], others: Sequence[Tensor]) -> Float[Tensor, "n"]:
    """The sorted numbers of some tensors that are in none of the others."""
    empty = torch.zeros(0, dtype=torch.double)
    first, second = (torch.cat([empty, *map(_telling, every)]).unique() for every in (some, others))
    return first[~_are_in(first, second)]


def _are_in(numbers: Tensor, known: Tensor) -> Tensor:
    """Which numbers are among the sorted known ones, to rounding."""
    if not len(known):
        return torch.zeros_like(numbers, dtype=torch.bool)
    at = torch.searchsorted(known, numbers).clamp(max=len(known) - 1)
    near = torch.minimum((known[at] - numbers).abs(), (known[(at - 1).clamp(min=0)] - numbers).abs())
    return near <= 1e-6 * numbers.abs() + 1e-9


def _all_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _all_tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _all_tensors(one)
