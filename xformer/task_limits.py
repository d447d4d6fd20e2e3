"""The tasks and the permitted values of their settings. Configurations are validated against these without importing torch.

To add a task, add a file in `xformer/tasks/rules/` and an entry below, under the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from xformer.errors import ConfigError

Architecture = Literal["encoder", "decoder", "encoder-decoder"]


@dataclass(frozen=True)
class TaskLimits:
    """The permitted values of one task's settings."""

    architectures: tuple[Architecture, ...] = get_args(Architecture)
    symbols: tuple[int, int] = (1, 100_000)
    lengths: tuple[int, int] = (1, 10_000)
    is_distinct: bool = False
    """Whether the symbols of a sequence are all different."""
    is_text: bool = False
    """Whether the symbols are the characters of a text; every example then has the same length."""
    is_image: bool = False
    """Whether the symbols are the pixels of an image, which is cut into patches."""


_WRITES: tuple[Architecture, ...] = ("decoder", "encoder-decoder")
"""For answers that need several steps, or differ in length from the source."""

TASK_LIMITS: dict[str, TaskLimits] = {
    "reverse": TaskLimits(),
    "sort": TaskLimits(),
    "copy": TaskLimits(),
    "copy-twice": TaskLimits(_WRITES, is_distinct=True),
    "induction": TaskLimits(("decoder",), is_distinct=True),
    "addition": TaskLimits(_WRITES, symbols=(11, 11), lengths=(1, 18)),
    "parity": TaskLimits(_WRITES, symbols=(2, 2)),
    "brackets": TaskLimits(("encoder",), symbols=(2, 2)),
    "modular": TaskLimits(_WRITES, symbols=(5, 1_000), lengths=(2, 2)),
    "digits": TaskLimits(("encoder",), symbols=(10, 10), lengths=(8, 8), is_image=True),
    "characters": TaskLimits(_WRITES, symbols=(2, 4_096), lengths=(2, 4_096), is_text=True),
}
"""By the name of the task; the module of each task in `xformer.tasks.rules` gives the reasons."""

PYTHON, SHAKESPEARE = "python", "shakespeare"

MAX_VOCABULARY = 4_096

_KEPT = re.compile(r"[0-9a-f]{16}", re.ASCII)


def check_text_name(name: str) -> None:
    """Raise `ConfigError` for an invalid name of a text. A name is never a path, so settings cannot make a file be read."""
    if name not in (PYTHON, SHAKESPEARE) and not _KEPT.fullmatch(name):
        raise ConfigError(
            f"text must be 'python', 'shakespeare' or the 16-digit id of an uploaded text, got {name[:40]!r}; for example "
            "text='python'."
        )


def check_alphabet(alphabet: str) -> None:
    """Raise `ConfigError` for an invalid alphabet: repeated characters, control characters, or too few or too many."""
    if not 2 <= len(alphabet) <= MAX_VOCABULARY:
        raise ConfigError(
            f"alphabet must have from 2 to {MAX_VOCABULARY:,} characters, got {len(alphabet)}; for example 'abc '."
        )
    if len(set(alphabet)) != len(alphabet):
        raise ConfigError("alphabet must not repeat a character; for example 'abc '.")
    if not all(map(is_sayable, alphabet)):
        raise ConfigError("alphabet must not contain control characters; for example 'abc '.")


def is_sayable(character: str) -> bool:
    """Return whether a character can be displayed: a newline, a tab, or neither a control character nor a surrogate."""
    number = ord(character)
    return character in "\n\t" or not (number < 32 or 127 <= number < 160 or 0xD800 <= number <= 0xDFFF)
