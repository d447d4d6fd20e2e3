"""One fault, ready to be tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class NotPossibleError(Exception):
    """This machine offers no way to try a fault; says why."""


@dataclass(frozen=True)
class Trial:
    """What is tried, and how; raises `AssertionError` where it is not survived."""

    name: str
    run: Callable[[], None]
