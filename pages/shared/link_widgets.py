"""Widgets that a link can set: they begin with what it asks for, and say so where that is not here.

side = choose("side", {"encoder": "source", "decoder": "target"}, "encoder", "Which side")
view.share(side=side)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from pages.shared.link import asked, carry, chose

SIDES = {"encoder": "source", "decoder": "target"}


def seed(name: str, options: Sequence[Any], default: Any, *, key: str | None = None, called: str | None = None) -> None:
    """Give the widget `key` a value among `options`: what the link asks for under `name`, else what it has, else the usual one.

    The link writes an option as `str` does; `called` is the word for it in a complaint.
    """
    key = key or name
    words = {str(option): option for option in options}
    wanted = asked(name)
    if wanted in words:
        st.session_state[key] = words[wanted]
        return
    if wanted is not None:
        not_here(called or name)
    if st.session_state.get(key) not in options:
        st.session_state[key] = default
    carry(key)


def choose(
    name: str,
    options: Mapping[str, str],
    default: str,
    label: str,
    *,
    key: str | None = None,
    widget: Callable[..., Any] = st.segmented_control,
    **look: Any,
) -> str:
    """One of `options` (what the link writes: what a person reads), remembered for the session and put into the link.

    `widget` is `st.segmented_control` or `st.selectbox`; `look` goes to it.
    """
    seed(name, list(options), default, key=key)
    always = {"required": True} if widget is st.segmented_control else {}
    chosen = widget(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key or name,
        persist_state="session",
        **always,
        **look,
    )
    chose(name, chosen)
    return chosen


def ask_side() -> str:
    """On which side of an encoder-decoder to look, as the name of its stack: "encoder" or "decoder"."""
    return choose("side", SIDES, "encoder", "Which side")


def not_here(what: str, there: Iterable[str] = ()) -> None:
    """Say that a link asks in vain; `there` lists what it could have asked for."""
    known = ", ".join(there)
    st.warning(
        f"The link asks for a {what} that is not here, so the usual one is shown."
        + (f" There are: {known}." if known else ""),
        icon=":material/link_off:",
    )
