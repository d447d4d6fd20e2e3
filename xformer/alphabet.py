"""What an alphabet may hold, and what a text may be called: the rules of the two settings that character models add."""

from __future__ import annotations

import re

from xformer.errors import ConfigError

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
    """Raise `ConfigError` for what cannot be an alphabet: a character twice, or one that nobody can see or type."""
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
