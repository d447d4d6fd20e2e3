"""What was typed or pasted into a box, as it may be used: whole characters, and not more of them than is meant to be read.

A browser refuses a paste that is longer than a box allows without a word. So the boxes here allow any length, and say what is
too long.
"""

from __future__ import annotations

from xformer.errors import InputError


def typed(text: object, most: int) -> str:
    """The text of a box. Raises `InputError` with one sentence where it has more than `most` characters."""
    whole = str(text).encode("utf-8", "replace").decode()  # half a character can be neither sent nor stored
    if len(whole) > most:
        raise InputError(f"Up to {most:,} characters are read here, got {len(whole):,}; take a part of it.")
    return whole
