"""Words that anyone can have typed, on a screen that reads Markdown: no link, picture or formula comes of them."""

from __future__ import annotations

import re
import string

_MARKS = re.compile(f"([{re.escape(string.punctuation)}])")


def literal(text: str) -> str:
    """The Markdown that shows a text letter by letter."""
    return _MARKS.sub(r"\\\1", text)
