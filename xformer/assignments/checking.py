"""`check`: grade a submission in a process of its own, or functions of this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from xformer.assignments.bugs import BUGS, PLANTED
from xformer.assignments.grading import LocalCode, Result, StudentCode, grade, grade_bug
from xformer.assignments.process import RunLimits, Submission
from xformer.assignments.report import Report
from xformer.assignments.student import Ran
from xformer.assignments.task import TaskPart
from xformer.assignments.tasks import TASKS
from xformer.errors import InputError

SOLUTION = "solution.py"
"""The file of the ten tasks; those of the bugs are called like their tasks."""
Submitted = str | Path | ModuleType | Mapping[str, Any] | Callable[..., Any]


def check(
    submission: Submitted, *, task: str | None = None, hint: int = 1, seconds: float = 5.0, memory: int = 2 * 1024**3
) -> Report:
    """Check a submission: for each task, passed, or the first wrong cell with the name of the mistake and its line.

    A path is checked in a process of its own, on a copy of its folder. Functions, classes and modules are checked in this
    process, as in a notebook: with a time limit where the system has one, but without a limit of memory.

    Args:
        submission: A folder with `solution.py` or with `bug_*.py`, such a file, or a notebook; a module, a mapping of names
            such as `globals()`, or one function or class.
        task: The task to check; all by default.
        hint: How much to tell: 1 where to look, 2 also what is wrong, 3 also how it should read.
        seconds: The longest time of one call of a function.
        memory: The memory in bytes that the submission may use, beyond that of the libraries.

    Returns:
        The report.

    Raises:
        InputError: There is no such task, or no submission at this path.

    Example:
        >>> import torch
        >>> from xformer import assignments
        >>> def softmax(scores, dim=-1):
        ...     return scores.exp() / scores.exp().sum(dim, keepdim=True)
        >>> assignments.check(softmax).results[0].cause
        'softmax_overflows'
    """
    if task is not None and task not in {**TASKS, **BUGS}:
        raise InputError(f"A task must be one of {', '.join([*TASKS, *BUGS])}; got {task!r:.60}.")
    if hint not in (1, 2, 3):
        raise InputError(f"A hint must be 1, 2 or 3; got {hint!r:.20}.")
    if isinstance(submission, str | Path):
        return _check_path(Path(submission), task, hint, RunLimits(seconds, memory))
    if isinstance(submission, ModuleType | Mapping):
        functions = vars(submission) if isinstance(submission, ModuleType) else submission
        chosen = {name: None for name in TASKS if task in (None, name)}
    else:
        name = submission.__name__
        chosen = {one.name: [name] for one in TASKS.values() if name in {part.name for part in one.parts}}
        if not chosen:
            parts = [part.name for one in TASKS.values() for part in one.parts]
            raise InputError(f"A function of the assignments is one of {', '.join(parts)}; got {name!r:.60}.")
        functions = {name: submission}
    code = _TimedCode(functions, seconds)
    results = [grade(TASKS[name], code, parts) for name, parts in chosen.items()]
    return Report(str(functions.get("__name__", "notebook")), _with_needs(results), (), hint)


def _check_path(path: Path, task: str | None, hint: int, limits: RunLimits) -> Report:
    results: list[Result] = []
    notes: list[str] = []
    for file in files_of(path, task):
        with Submission(file, limits) as code:
            results += _graded(file, task, code)
            notes += code.notes
    name = path.resolve().name if path.is_dir() or path.name != SOLUTION else path.resolve().parent.name
    return Report(name, _with_needs(results), tuple(notes), hint)


def _with_needs(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results, with the tasks that those which fail may follow from."""
    open_tasks = {one.task for one in results if one.status != "passed"}
    return tuple(
        replace(one, follows_from=tuple(name for name in TASKS[one.task].needs if name in open_tasks))
        if one.status == "failed" and one.task in TASKS
        else one
        for one in results
    )


def empty_report(path: str, reason: str, *, task: str | None = None) -> Report:
    """Return the report on a submission that has no file to check: nothing is written yet."""
    results = (Result(name, one.title, "not_written") for name, one in TASKS.items() if task in (None, name))
    return Report(Path(path).name, tuple(results), (reason,))


def _graded(file: Path, task: str | None, code: StudentCode) -> Iterator[Result]:
    if file.stem in PLANTED:
        yield grade_bug(BUGS[file.stem], PLANTED[file.stem], code)
    else:
        for one in TASKS.values():
            if task in (None, one.name):
                yield grade(one, code)


def files_of(path: Path, task: str | None = None) -> Sequence[Path]:
    """Return the files of a submission that are checked. Raises `InputError` if there is none."""
    if path.is_file():
        if path.suffix not in (".py", ".ipynb"):
            raise InputError(f"A submission is a folder, a Python file or a notebook; got {str(path)!r:.200}.")
        return [path]
    wanted = (
        [SOLUTION, *(f"{name}.py" for name in BUGS)] if task is None else [f"{task}.py" if task in BUGS else SOLUTION]
    )
    if found := [path / name for name in wanted if (path / name).is_file()]:
        return found
    raise InputError(f"There is no {' and no '.join([wanted[0], *wanted[1:2]])} in {str(path)!r:.200}.")


@dataclass(frozen=True)
class _TimedCode(LocalCode):
    """Code of this process, whose calls are interrupted after some seconds where the system can do that."""

    seconds: float

    def run(self, part: TaskPart, case: int) -> Ran:
        """Run one case of a part."""
        with _time_limit(self.seconds):
            return super().run(part, case)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread after some seconds; without signals, or in another thread, never."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"It was still running after {seconds:g} seconds; is there a loop without an end?")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
