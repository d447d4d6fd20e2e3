"""Text on a screen: what visitors typed, shown letter by letter, and technical terms in plain English.

    st.markdown(escape_markdown(name))
    st.caption(text, help=explained(text))
    what_to_notice(notes)                    # pages.shared.layout: explains by itself

A backslash before each punctuation mark disarms what Markdown grammar sees. Streamlit and GitHub dialect also look through
the finished text, where no backslash is left: for addresses, `:streamlit:` and arrows. An invisible word joiner parts those.
"""

from __future__ import annotations

import re
import string
import tomllib
from pathlib import Path

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


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def escape_markdown(text: str) -> str:
    """The Markdown that shows a text letter by letter."""
    text = _INDENT.sub(lambda indent: "\N{NO-BREAK SPACE}" * len(indent[0]), text)
    return _MARKS.sub(r"\\\1", _FOUND_LATER.sub(rf"\g<0>{WORD_JOINER}", text))


WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
"""Each word, and what it means. A longer one is not taken for the shorter one inside it."""

_LOWER = {word.lower(): word for word in WORDS}
_LONGEST_FIRST = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
_FIND = re.compile(rf"(?<![\w-])({_LONGEST_FIRST})(?:e?s)?(?![\w-])", re.IGNORECASE)


def words_in(text: str, *, except_for: set[str] | None = None) -> list[str]:
    """The words of the field in a text, each once, in its order; KL and TV in capitals only, like all that are all capitals."""
    matches = (match[1] for match in _FIND.finditer(text.replace("\\", "").replace("*", "")))
    found = dict.fromkeys(_LOWER[one.lower()] for one in matches if not _LOWER[one.lower()].isupper() or one.isupper())
    return [word for word in found if word not in (except_for or ())]


def explained(text: str, *, except_for: set[str] | None = None) -> str | None:
    """What the words of the field in a text mean, as Markdown for `help=`; None where it uses none."""
    found = words_in(text, except_for=except_for)
    return "\n\n".join(f"**{word}**: {WORDS[word]}." for word in found) or None
