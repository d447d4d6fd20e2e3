"""Words that anyone can have typed, on a screen that reads Markdown: no link, picture, formula or symbol comes of them.

A backslash before each punctuation mark disarms what Markdown's grammar sees. Streamlit and GitHub's dialect also look through
the finished text, where no backslash is left: for addresses, `:streamlit:` and arrows. An invisible word joiner parts those.
"""

from __future__ import annotations

import re
import string

_MARKS = re.compile(f"([{re.escape(string.punctuation)}])")
_FOUND_LATER = re.compile(
    r":(?=[\w/+])"  # http://…, mailto:…, :streamlit:, :material/…
    r"|@(?=\w)"  # me@example.org
    r"|\bwww(?=\.)"
    r"|[-<>=~](?=[-<>=~])",  # -> <- -- >= ~=
    re.IGNORECASE,
)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
"""At the start of a line four spaces would make it code."""
WORD_JOINER = "\N{WORD JOINER}"


def escape_markdown(text: str) -> str:
    """The Markdown that shows a text letter by letter."""
    text = _INDENT.sub(lambda indent: "\N{NO-BREAK SPACE}" * len(indent[0]), text)
    return _MARKS.sub(r"\\\1", _FOUND_LATER.sub(rf"\g<0>{WORD_JOINER}", text))
