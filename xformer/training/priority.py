"""Whoever looks at a page comes first: a process that trains on the CPU takes only the time that nobody else wants."""

from __future__ import annotations

import os


def step_back() -> str:
    """Give this process the lowest priority that the system offers to everyone; returns which one it was."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return "idle"
    except (AttributeError, OSError):  # not Linux, or not allowed in this container
        os.nice(19)
        return "nice"
