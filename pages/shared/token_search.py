"""A token of a large vocabulary, found by its text: typed, and where several hold it, chosen among the shortest of them.

The browser never gets a list of 49,152 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry, chose
from pages.shared.link_widgets import not_here

MOST_LISTED = 512
"""A vocabulary of up to so many tokens is shown as a list."""
MOST_FOUND = 30


def find_tokens(labels: Sequence[str], text: str, most: int = MOST_FOUND) -> list[int]:
    """The tokens that a text means: itself, then with a space before it (·), then those that hold it, the shortest first."""
    wanted = text.replace(" ", "·")
    if not wanted:
        return []
    first = [token for one in dict.fromkeys((text, wanted, f"·{wanted}")) for token in _equal(labels, one)]
    small = wanted.casefold()
    holding = [token for token, label in enumerate(labels) if small in label.casefold()]
    return list(dict.fromkeys([*first, *sorted(holding, key=lambda token: len(labels[token]))]))[:most]


def ask_token(labels: Sequence[str], name: str, usual: int, label: str, *, help: str | None = None) -> int:
    """A box to type a token into, the link's `name`; `usual` where nothing is typed, or nothing that is there."""
    wanted = asked(name)
    if wanted is not None and (not wanted or find_tokens(labels, wanted)):
        st.session_state[name] = wanted
    elif wanted is not None:
        not_here("token")
    st.session_state.setdefault(name, "")
    carry(name)
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    typed = row.text_input(label, key=name, persist_state="session", placeholder=labels[usual], help=help)
    found = find_tokens(labels, typed) if typed else [usual]
    if not found:
        st.caption(f"No token holds {escape_markdown(typed[:40])}; {escape_markdown(labels[usual])} is shown.")
        return usual
    chosen = found[0]
    if len(found) > 1 and labels[chosen] != typed:
        chosen = row.selectbox(
            "Token",
            found,
            format_func=lambda token: str(labels[token]),
            key=f"{name}_among",
            label_visibility="collapsed",
        )
    chose(name, labels[chosen] if typed else "")
    return chosen


def _equal(labels: Sequence[str], text: str) -> list[int]:
    return [token for token, label in enumerate(labels) if label == text]
