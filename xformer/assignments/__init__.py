"""Assignments: write a GPT in ten tasks, or find the bug. A check names the first wrong cell, the mistake and its line.

`write` makes the folder of an assignment, `check` grades it. `python -m xformer assignment` does both on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.assignments.checking import check as check
    from xformer.assignments.report import Report as Report
    from xformer.assignments.report import common_mistakes as common_mistakes
    from xformer.assignments.writing import write as write
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
