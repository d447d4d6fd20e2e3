"""Compare a student's numbers with the right ones: the first wrong cell, the known mistake that gives them, hints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

import torch
from jaxtyping import Bool
from torch import Tensor

from xformer.assignments.bugs import PlantedBug
from xformer.assignments.student import NOWHERE, Problem, Ran, SourcePlace, diagnosed, locate, run_case
from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, Wrong

TOLERANCE = 2e-3
"""The largest difference that counts as rounding, relative to the size of the right numbers: half precision inside is right."""
HINTS = ("where", "what", "how")
STATUSES = ("passed", "failed", "not_written")


@dataclass(frozen=True)
class Cell:
    """The first wrong number of a result.

    Attributes:
        output: The result, "output" if it is the only one.
        index: The index of the cell by the name of the axis; empty if the shapes differ.
        expected: The right number, or the right shape or type.
        actual: The student's.
        case: The case in a few words.
    """

    output: str
    index: Mapping[str, int]
    expected: str
    actual: str
    case: str

    def __str__(self) -> str:
        at = ", ".join(f"{axis} {at}" for axis, at in self.index.items())
        where = f"[{at}]" if at else ""
        return f"{self.case}: {self.output}{where} is {self.actual}, expected {self.expected}"


@dataclass(frozen=True)
class Result:
    """The result of one task.

    Attributes:
        task: The task's name.
        title: Its title.
        status: "passed", "failed" or "not_written".
        part: The function or class that is wrong; "" if the task is passed.
        cause: The identifier of the mistake, or of the problem; "" if it is not known.
        sentence: What is wrong.
        place: The line.
        cell: The first wrong cell, if there are numbers.
        hints: Where to look, what is wrong, and how it should read.
        follows_from: Tasks that are not passed and that this one may use.
    """

    task: str
    title: str
    status: str
    part: str = ""
    cause: str = ""
    sentence: str = ""
    place: SourcePlace = NOWHERE
    cell: Cell | None = None
    hints: tuple[str, ...] = ()
    follows_from: tuple[str, ...] = ()


class StudentCode(Protocol):
    """The student's code, in this process or in another one."""

    def run(self, part: TaskPart, case: int) -> Ran:
        """Run one case of a part."""
        ...

    def locate(self, part: TaskPart, case: int, mistakes: Sequence[Wrong]) -> SourcePlace:
        """Find the line at which the numbers become those of a mistake; see `xformer.assignments.student.locate`."""
        ...

    def diagnose(self, part: TaskPart) -> Problem | None:
        """Return what the doctor finds in a repaired model; None for nothing."""
        ...

    @property
    def declared(self) -> str:
        """The value of `CAUSE` in the student's file."""
        ...


@dataclass(frozen=True)
class LocalCode:
    """The student's code in this process, as functions and classes by name."""

    functions: Mapping[str, Any]

    def run(self, part: TaskPart, case: int) -> Ran:
        """Run one case of a part."""
        if part.name not in self.functions:
            return Ran({}, Problem("not_written", f"There is no {part.name}."))
        return run_case(part, self.functions[part.name], cases(part)[case])

    def locate(self, part: TaskPart, case: int, mistakes: Sequence[Wrong]) -> SourcePlace:
        """Find the line at which the numbers become those of a mistake."""
        return locate(part, self.functions[part.name], cases(part)[case], mistakes)

    def diagnose(self, part: TaskPart) -> Problem | None:
        """Return what the doctor finds in a repaired model; None for nothing."""
        return diagnosed(part, self.functions[part.name], cases(part)[0])

    @property
    def declared(self) -> str:
        """The value of `CAUSE` in the student's file."""
        return str(self.functions.get("CAUSE", ""))[:100]


@cache
def cases(part: TaskPart) -> Sequence[TaskCase]:
    """Return the cases of a part, made once."""
    return part.cases()


@cache
def expected(part: TaskPart, case: int) -> Mapping[str, Tensor]:
    """Return the right numbers of a case, computed once."""
    ran = run_case(part, part.right, cases(part)[case])
    assert ran.problem is None, (part.name, case, ran.problem)
    return ran.outputs


def grade(task: AssignmentTask, student: StudentCode, parts: Iterable[str] | None = None) -> Result:
    """Grade a task: its first part that fails decides.

    Args:
        task: The task.
        student: The student's code.
        parts: The parts to grade; all by default.
    """
    for part in task.parts:
        if parts is None or part.name in parts:
            found = _grade_part(task, part, student)
            if found.status != "passed":
                return found
    return Result(task.name, task.title, "passed")


def grade_bug(task: AssignmentTask, bug: PlantedBug, student: StudentCode) -> Result:
    """Grade a bug: the model must be repaired, and `CAUSE` must name the fault."""
    [part] = task.parts
    found = _grade_part(task, part, student)
    old, new = ("; ".join(line.strip() for line in text.strip().splitlines()) for text in (bug.old, bug.new))
    planted = f"This is wrong: {new}" if new else f"A line is missing in {bug.where}."
    hints = (f"Look at {bug.where}. {bug.symptom}", planted, f"It should read: {old}")
    named = student.declared in (bug.cause, *bug.also)
    if found.status == "passed" and not named:
        what = f'CAUSE is "{student.declared}", which is not its name.' if student.declared else "CAUSE is still empty."
        names = "The names are in docs/is-my-attention-right.md, in the column cause."
        found = _with_problem(task, part, Problem("not_named", f"The model is right. {what} {names}"), "failed")
    if found.status == "passed" and (problem := student.diagnose(part)) is not None:
        found = _with_problem(task, part, Problem("not_clean", problem.sentence, problem.place), "failed")
    if found.status == "passed":
        return found
    if found.cell is not None:
        is_named = " Its name is right." if named else ""
        cause = found.cause or "not_repaired"
        found = replace(found, cause=cause, sentence=f"The model still computes something else.{is_named}")
    return replace(found, hints=hints)


def _grade_part(task: AssignmentTask, part: TaskPart, student: StudentCode) -> Result:
    ran: list[Ran] = []
    for at in range(len(cases(part))):
        ran.append(student.run(part, at))
        problem = ran[-1].problem
        if problem is not None and (problem.cause == "not_written" or problem.cause.endswith(("limit", "python"))):
            status = "not_written" if problem.cause == "not_written" else "failed"
            return _with_problem(task, part, problem, status)
    differences = [_difference(part, at, one) for at, one in enumerate(ran)]
    failing = next((at for at, one in enumerate(differences) if one is not None), None)
    if failing is None:
        return Result(task.name, task.title, "passed")
    known = _explained(part, ran)
    cell = next((one for one in differences if isinstance(one, Cell)), None)
    if not known:
        problem = next((one for one in differences if isinstance(one, Problem)), None)
        if problem is not None:
            return _with_problem(task, part, problem, "failed", cell)
        assert cell is not None
        if cause := _named_by_shape(cell, ran[failing], part, failing):
            return _with_problem(task, part, Problem(cause, f"{part.name}: {cell}."), "failed", cell)
        if part.model is not None and (seen := student.diagnose(part)) is not None:
            hints = (part.look, seen.sentence, f"It should read: {part.equation}")
            return Result(
                task.name, task.title, "failed", part.name, seen.cause, seen.sentence, seen.place, cell, hints
            )
        hints = (part.look, f"{cell}.", "No known mistake gives these numbers; compare each step with the equation.")
        return Result(task.name, task.title, "failed", part.name, "", f"{part.name}: {cell}.", NOWHERE, cell, hints)
    first = known[0][0]
    at = next((at for at, one in enumerate(differences) if isinstance(one, Cell)), failing)
    place = student.locate(part, at, [one[0] for one in known])
    sentence = " ".join(dict.fromkeys(one.sentence for one in known[0]))
    how = "; ".join(dict.fromkeys(one.how for one in known[0]))
    hints = (part.look, sentence, f"It should read: {how}")
    return Result(task.name, task.title, "failed", part.name, first.cause, sentence, place, cell, hints)


def _with_problem(
    task: AssignmentTask, part: TaskPart, problem: Problem, status: str, cell: Cell | None = None
) -> Result:
    hints = (part.look, problem.sentence, "Read the docstring again: shapes, and what it returns.")
    name, sentence = part.name, f"{part.name}: {problem.sentence}"
    return Result(task.name, task.title, status, name, problem.cause, sentence, problem.place, cell, hints)


def _named_by_shape(cell: Cell, ran: Ran, part: TaskPart, case: int) -> str:
    """The cause of a wrong shape or type, which no number shows."""
    right, found = expected(part, case), ran.outputs
    if any(found[name].shape != one.shape for name, one in right.items() if name in found):
        return "wrong_shape"
    if any(found[name].dtype != one.dtype for name, one in right.items() if name in found and not cell.index):
        return "dtype_not_kept"
    return ""


def _difference(part: TaskPart, at: int, ran: Ran) -> Cell | Problem | None:
    if ran.problem is not None:
        return ran.problem
    case = cases(part)[at]
    for name, right in expected(part, at).items():
        axes = part.axes.get(name, "...").split()
        found = first_wrong_cell(ran.outputs[name], right, case.free)
        if found is None:
            continue
        index, actual, wanted = found
        names = axes if len(axes) == len(index) else [f"axis {axis}" for axis in range(len(index))]
        return Cell(name, dict(zip(names, index, strict=True)), wanted, actual, case.what)
    return None


def first_wrong_cell(
    actual: Tensor, right: Tensor, free: Bool[Tensor, "..."] | None = None
) -> tuple[tuple[int, ...], str, str] | None:
    """Compare two tensors.

    Returns:
        The index of the first wrong cell, the number there and the right one; for a wrong shape or type no index, and those.
        None if nothing is wrong.
    """
    if actual.shape != right.shape:
        return (), f"of shape {list(actual.shape)}", f"{list(right.shape)}"
    differs = wrong_cells(actual, right, free)
    if bool(differs.any()):
        index = tuple(int(one) for one in differs.nonzero()[0])
        return index, _number(actual[index]), _number(right[index])
    kinds = [one.dtype for one in (actual, right)]
    if kinds[0] != kinds[1] and (torch.bool in kinds or right.dtype == torch.double):
        names = [str(one).removeprefix("torch.") for one in kinds]
        return (), names[0], names[1]
    return None


def wrong_cells(actual: Tensor, right: Tensor, free: Bool[Tensor, "..."] | None = None) -> Bool[Tensor, "..."]:
    """Where two tensors of one shape differ by more than rounding; where they are free, any finite number is right.

    Numbers beyond a million count as infinite: no right one is so large, and masks are made of several.
    """
    one, other = (torch.where(x.abs() < 1e6, x, x.sign() * math.inf) for x in (actual.double(), right.double()))
    finite = other[other.isfinite()]
    size = float(finite.square().mean().sqrt()) if len(finite) else 0.0
    differs = ~torch.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * size, equal_nan=True)
    return differs if free is None else torch.where(free.expand(one.shape), ~actual.isfinite(), differs)


def _number(value: Tensor) -> str:
    return f"{value.item():.4g}" if value.is_floating_point() else str(value.item())


# ── the known mistake ──


def _explained(part: TaskPart, ran: Sequence[Ran]) -> list[tuple[Wrong, ...]]:
    """The mistakes that give the student's numbers in every case: one, or two together.

    Several are given only if they have one name, as the same mistake with another number. Empty if none or others would do.
    """
    if all(one.problem is not None for one in ran):
        return []
    for together in (1, 2):
        found = [
            some
            for some in itertools.combinations(part.wrongs, together)
            if _are_apart(some) and _reproduces(part, some, ran)
        ]
        if found:
            causes = {tuple(one.cause for one in some) for some in found}
            return found if len(causes) == 1 else []
    return []


def _are_apart(some: Sequence[Wrong]) -> bool:
    """Whether mistakes change different arguments."""
    names = [name for one in some for name in one.change]
    return len(names) == len(set(names)) and (len(some) == 1 or len({one.cause for one in some}) == len(some))


def _reproduces(part: TaskPart, some: tuple[Wrong, ...], ran: Sequence[Ran]) -> bool:
    for at, one in enumerate(ran):
        other = _wrong_run(part, some, at)
        if one.problem is not None or other.problem is not None:
            if (one.problem is None) != (other.problem is None):
                return False
            continue
        for name, actual in one.outputs.items():
            wrong = other.outputs.get(name)
            if (
                wrong is None
                or wrong.shape != actual.shape
                or wrong.dtype.is_floating_point != actual.dtype.is_floating_point
            ):
                return False
            free = cases(part)[at].free
            if free is not None:  # any finite number is right there, so only whether it is finite tells
                free = free.expand(actual.shape)
                if not torch.equal(actual.isfinite()[free], wrong.isfinite()[free]):
                    return False
            if bool(wrong_cells(actual, wrong, None if free is None else free & actual.isfinite()).any()):
                return False
    return True


@cache
def _wrong_run(part: TaskPart, some: tuple[Wrong, ...], at: int) -> Ran:
    """The numbers of the formula with these mistakes, computed once."""
    change = {name: value for one in some for name, value in one.change.items()}
    return run_case(part, partial(part.right, **change), cases(part)[at])
