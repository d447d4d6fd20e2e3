"""Which tasks there are, and what each allows its sizes to be: what a configuration is checked against, without loading torch.

A new task is a file in `xformer/tasks/rules/` and its line below, under the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from xformer.errors import ConfigError

Architecture = Literal["encoder", "decoder", "encoder-decoder"]


@dataclass(frozen=True)
class TaskLimits:
    """What one kind of task allows its sizes to be."""

    architectures: tuple[Architecture, ...] = get_args(Architecture)
    symbols: tuple[int, int] = (1, 100_000)
    lengths: tuple[int, int] = (1, 10_000)
    is_distinct: bool = False
    """Are the symbols of a sequence all different?"""
    is_text: bool = False
    """Are they the characters of a text? Then every example has the same length."""
    is_image: bool = False
    """Are they the pixels of an image, which is cut into patches?"""


_WRITES: tuple[Architecture, ...] = ("decoder", "encoder-decoder")
"""For answers that are written step by step, or are not as long as the source."""

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
"""By the name of the task; the reasons stand with each in `xformer.tasks.rules`."""

PYTHON, SHAKESPEARE = "python", "shakespeare"

MOST_DIFFERENT = 4_096

_KEPT = re.compile(r"[0-9a-f]{16}", re.ASCII)


def check_text_name(name: str) -> None:
    """Raise `ConfigError` for what is not the name of a text. It is never a path, so no settings make a file be read."""
    if name not in (PYTHON, SHAKESPEARE) and not _KEPT.fullmatch(name):
        raise ConfigError(
            f"text must be 'python', 'shakespeare' or the 16 digits of a text that was given, got {name[:40]!r}; for example "
            "text='python'."
        )


def check_alphabet(alphabet: str) -> None:
    """Raise `ConfigError` for what cannot be an alphabet: a character twice, or a control character."""
    if not 2 <= len(alphabet) <= MOST_DIFFERENT:
        raise ConfigError(
            f"alphabet must hold from 2 to {MOST_DIFFERENT:,} characters, got {len(alphabet)}; for example 'abc '."
        )
    if len(set(alphabet)) != len(alphabet):
        raise ConfigError("alphabet must hold each character once, got one twice; for example 'abc '.")
    if not all(map(is_sayable, alphabet)):
        raise ConfigError(
            "alphabet must hold characters that can be written, got a control character; for example 'abc '."
        )


def is_sayable(character: str) -> bool:
    """Whether a character can be shown: a line end or a tab, or neither a control character nor half of a pair."""
    number = ord(character)
    return character in "\n\t" or not (number < 32 or 127 <= number < 160 or 0xD800 <= number <= 0xDFFF)
