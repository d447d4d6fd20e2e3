"""Numbers on the command line, checked before anything is trained or loaded; and how good a model is, in words."""

from __future__ import annotations

import re
from typing import Any

from xformer.config import TaskName
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.task_limits import TASK_LIMITS

MOST_SAMPLES = 10_000_000


def check_samples(option: str, value: int, least: int) -> None:
    """Raise `InputError` for a number of inputs that nothing can be scored on."""
    if not least <= value <= MOST_SAMPLES:
        raise InputError(f"{option} must be from {least} to {MOST_SAMPLES:,}, got {value}; for example 10000.")


def check_seed(value: int) -> None:
    """Raise `InputError` for what is no seed."""
    if not 0 <= value < 2**63:
        raise InputError(f"--seed must be from 0 to 2^63 - 1, got {value}; for example 1.")


def lengths_in(text: str) -> range:
    """The lengths that "3-60", or "20" alone, names. Raises `InputError` for anything else."""
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= first <= last:
        raise InputError(
            f"--lengths must be a length or a range of them from 1 on, got {text!r:.40}; for example 3-60."
        )
    return range(first, last + 1)


def how_good(score: Any, task: TaskName) -> str:
    """The one figure that a task is judged by, in words; `score` is a `Score`."""
    if TASK_LIMITS[task].is_text:
        return f"held-out loss {score.loss:.4f} nats, {score.bits:.3f} bits per character"
    return f"{percent(score.exact_match)} exact match"


def figure(name: str, value: float) -> str:
    """One figure of a score in a table."""
    if name == "seed":
        return str(value)
    if name in ("token_accuracy", "exact_match"):
        return percent(value, 4)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
