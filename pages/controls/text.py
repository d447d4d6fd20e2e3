"""Text on a screen: headline, captions and notes, explanations of technical terms, and escaping of typed text.

    st.markdown(escape_markdown(name))
    st.caption(text, help=explained(text))
    what_to_notice(notes)                    # adds the explanations itself

A backslash before each punctuation mark escapes Markdown syntax. Streamlit and GitHub Flavored Markdown also search the parsed
text, which has no backslashes left, for URLs, `:streamlit:` and arrows. An invisible word joiner splits those.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Iterable
from pathlib import Path

import streamlit as st

_MARKS = re.compile(f"([{re.escape(string.punctuation)}])")
_FOUND_LATER = re.compile(
    r":(?=[\w/+])"  # http://…, mailto:…, :streamlit:, :material/…
    r"|@(?=\w)"  # me@example.org
    r"|\bwww(?=\.)"
    r"|[-<>=~](?=[-<>=~])",  # -> <- -- >= ~=
    re.IGNORECASE,
)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
"""Indentation, since four spaces at the start of a line would make it code."""
WORD_JOINER = "\N{WORD JOINER}"


def signed(value: float, digits: int = 2) -> str:
    """Format a number with its sign, using a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def escape_markdown(text: str) -> str:
    """Escape a text so that Markdown shows it literally."""
    text = _INDENT.sub(lambda indent: "\N{NO-BREAK SPACE}" * len(indent[0]), text)
    return _MARKS.sub(r"\\\1", _FOUND_LATER.sub(rf"\g<0>{WORD_JOINER}", text))


WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
"""Technical terms and their explanations. A longer term takes precedence over a shorter one inside it."""

_LOWER = {word.lower(): word for word in WORDS}
_LONGEST_FIRST = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
_FIND = re.compile(rf"(?<![\w-])({_LONGEST_FIRST})(?:e?s)?(?![\w-])", re.IGNORECASE)


def words_in(text: str, *, except_for: set[str] | None = None) -> list[str]:
    """Return the technical terms in a text, each once, in order. Terms in capitals, such as KL, match in capitals only."""
    matches = (match[1] for match in _FIND.finditer(text.replace("\\", "").replace("*", "")))
    terms = ((_LOWER[match.lower()], match.isupper()) for match in matches)
    found = dict.fromkeys(term for term, is_upper in terms if is_upper or not term.isupper())
    return [word for word in found if word not in (except_for or ())]


def explained(text: str, *, except_for: set[str] | None = None) -> str | None:
    """Explain the technical terms in a text, as Markdown for `help=`; None if it has none."""
    found = words_in(text, except_for=except_for)
    return "\n\n".join(f"**{word}**: {WORDS[word]}." for word in found) or None


def headline(finding: str) -> None:
    """Draw the main finding of a screen above its picture; an empty finding draws nothing.

    `finding` is one sentence of Markdown. It is computed from the run on screen, and empty if the run does not show it.
    """
    if finding:
        with st.container(key="headline"):
            st.markdown(finding, help=explained(finding))


def what_to_notice(notes: Iterable[str]) -> None:
    """Draw the box at the end of a screen, one paragraph per note, with a “?” that explains technical terms not seen above.

    Empty notes are left out; without notes there is no box.
    """
    known: set[str] = set()
    if not (notes := [note for note in notes if note]):
        return
    with st.container(border=True, key="what_to_notice"):
        st.markdown("**What to notice**")
        for note in notes:
            st.markdown(note, help=explained(note, except_for=known))
            known.update(words_in(note))


def caption(text: str) -> None:
    """Draw the caption of a picture, with a “?” that explains its technical terms."""
    st.caption(text, help=explained(text))
