"""The link: what it asks for is followed once, and what a screen shows is put back into it.

A screen says what it shows, and begins with what the link asks for:

    panel = choose("panel", PANELS, "scores", "Panel")   # pages.shared.widgets: followed, and put back by itself
    scale = asked("scale")                               # "own", once, if the link says so; None else
    view.share(scale=scale)                              # or share({...}) on a screen without a view

app.py calls `begin` before every screen and `finish` after it; a fragment that runs alone writes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import streamlit as st

from pages.shared.streamlit_compat import is_history_navigation

_KEY = "link"


@dataclass
class _Link:
    """Where one visit stands with its link."""

    screen: str | None = None
    """The screen that runs, or ran last."""
    settled: str | None = None
    """The screen that has run to its end since it was opened."""
    is_running: bool = False
    asks: dict[str, str] = field(default_factory=dict)
    """What the link asks for and nothing has followed yet."""
    chosen: dict[str, str] = field(default_factory=dict)
    """What the widgets of this screen say by themselves."""
    shared: dict[str, str] | None = None
    """What the screen said."""
    written: dict[str, str] = field(default_factory=dict)
    """What was put into the address bar last. A browser that was clicked twice says the old one: it has not heard yet."""
    is_waiting: bool = False
    """Whether the screen is not complete yet, so that what the link asks for stands."""


def _link() -> _Link:
    return st.session_state.setdefault(_KEY, _Link())


def begin(screen: str) -> None:
    """Before a screen runs: on a first visit, on another screen, on Back and on Forward there is a link to follow."""
    link, now = _link(), st.query_params.to_dict()
    if link.screen != screen or is_history_navigation():
        link.asks, link.settled, link.screen, link.written = now, None, screen, now
    link.is_running, link.is_waiting, link.chosen, link.shared = True, False, {}, None


def finish() -> None:
    """After a screen ran to its end: what it shows is its link."""
    link = _link()
    link.is_running = False
    if link.is_waiting:
        return
    link.asks, link.settled = {}, link.screen
    if link.shared is not None:
        _write(link)


def wait() -> None:
    """The screen cannot show all yet: what the link asks for stands until a run in which it can."""
    _link().is_waiting = True


def begin_part() -> None:
    """Before a fragment that holds all widgets of its screen: what those say that are no longer there leaves the link."""
    _link().chosen = {}


def asked(name: str) -> str | None:
    """What the link asks for under a name, told once; None where it asks for nothing."""
    return _link().asks.pop(name, None)


def share(link: Mapping[str, str]) -> None:
    """Have this in the address bar, with what `choose` knows, for whoever copies the link or comes back to it."""
    ours = _link()
    ours.shared = dict(link)
    if not ours.is_running:
        _write(ours)


def chose(name: str, value: str) -> None:
    """What a widget of this screen says: it stands in the link of a screen that shares one."""
    link = _link()
    link.chosen[name] = value
    if not link.is_running and st.query_params.get(name, value) != value:  # a fragment that shares nothing else
        st.query_params[name] = value
        link.written = {**link.written, name: value}


def address() -> Callable[[], list[str]]:
    """What tells, whenever it is asked, the whole address of what this screen shows; of a screen served nowhere no line.

    For files: one is made after the screen has run, which says only at its end what it shows.
    """
    link, url = _link(), st.context.url
    return lambda: [f"{url}?{urlencode(link.written)}"] if url else []


def carry(key: str) -> None:
    """Before a widget that several screens have: give it the value that it has on the screen that was left.

    Streamlit knows a widget by its screen too. One with the same key on the next screen is another to it, that begins with its
    default and gets the value only after that screen has run.
    """
    link = _link()
    if link.settled != link.screen and key in st.session_state:
        st.session_state[key] = st.session_state[key]


def _write(link: _Link) -> None:
    shown = dict(link.shared or {})
    shown |= {name: value for name, value in link.chosen.items() if name not in shown}
    if not (st.query_params.to_dict() == shown == link.written):
        st.query_params.from_dict(shown)
        link.written = shown
