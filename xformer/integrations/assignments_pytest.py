"""A pytest plugin that checks submissions of an assignment: each task is a test.

    pytest -p xformer.integrations.assignments_pytest submissions/*/solution.py

The student's code is not imported by pytest; it runs in a process of its own, see `xformer.assignments`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from xformer.assignments.bugs import BUGS
from xformer.assignments.checking import SOLUTION, check
from xformer.assignments.report import Report
from xformer.assignments.tasks import TASKS


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect solution.py and bug_*.py as assignments; other files as usual."""
    if module_path.name == SOLUTION or module_path.stem in BUGS:
        return _Submission.from_parent(parent, path=module_path)
    return None


class _Submission(pytest.File):
    """A student's file. It is checked once, when the first of its tests runs."""

    found: Report | None = None

    def collect(self) -> Iterable[pytest.Item]:
        names = [self.path.stem] if self.path.stem in BUGS else list(TASKS)
        return [_TaskItem.from_parent(self, name=name) for name in names]

    @property
    def report(self) -> Report:
        """The report on all tasks."""
        if self.found is None:
            self.found = check(self.path)
        return self.found


class _TaskItem(pytest.Item):
    """One task of a submission."""

    def runtest(self) -> None:
        assert isinstance(self.parent, _Submission)
        report = self.parent.report
        [result] = [one for one in report.results if one.task == self.name]
        if result.status != "passed":
            raise _NotPassedError("\n".join(report.lines(result)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the result instead of a traceback."""
        return (
            str(excinfo.value) if isinstance(excinfo.value, _NotPassedError) else super().repr_failure(excinfo, style)
        )

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place and the name of the test."""
        return self.path, None, f"{self.path.name}::{self.name}"


class _NotPassedError(Exception):
    """A task is not passed."""
