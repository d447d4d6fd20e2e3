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
    """The state of one visit's link."""

    screen: str | None = None
    """The screen that runs, or ran last."""
    settled: str | None = None
    """The screen that has run to its end since it was opened."""
    is_running: bool = False
    asks: dict[str, str] = field(default_factory=dict)
    """Values of the link that are not applied yet."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Values of this screen's widgets."""
    shared: dict[str, str] | None = None
    """Values that the screen shared."""
    written: dict[str, str] = field(default_factory=dict)
    """The values last put into the address bar. After two quick clicks the browser still sends the old ones."""
    is_waiting: bool = False
    """Whether the screen is incomplete, so that the values of the link are kept."""


def _link() -> _Link:
    return st.session_state.setdefault(_KEY, _Link())


def begin(screen: str) -> None:
    """Before a screen runs: apply the link on a first visit, another screen, Back and Forward."""
    link, now = _link(), st.query_params.to_dict()
    if link.screen != screen or is_history_navigation():
        link.asks, link.settled, link.screen, link.written = now, None, screen, now
    link.is_running, link.is_waiting, link.chosen, link.shared = True, False, {}, None


def follow_again() -> None:
    """Before `st.switch_page`: apply the values that it is given, also where the screen stays the same."""
    _link().screen = None


def finish() -> None:
    """After a screen ran to its end: write its link."""
    link = _link()
    link.is_running = False
    if link.is_waiting:
        return
    link.asks, link.settled = {}, link.screen
    if link.shared is not None:
        _write(link)


def wait() -> None:
    """The screen is incomplete in this run: keep the values of the link."""
    _link().is_waiting = True


def begin_part() -> None:
    """Before a fragment with all widgets of its screen: forget the values of widgets, so that removed ones leave the link."""
    _link().chosen = {}


def asked(name: str) -> str | None:
    """The value of the link under a name, returned once; None without one."""
    return _link().asks.pop(name, None)


def share(link: Mapping[str, str]) -> None:
    """Put these values, and those of the widgets, into the address bar."""
    ours = _link()
    ours.shared = dict(link)
    if not ours.is_running:
        _write(ours)


def chose(name: str, value: str) -> None:
    """Record a widget's value for the link."""
    link = _link()
    link.chosen[name] = value
    if not link.is_running and st.query_params.get(name, value) != value:  # a fragment that shares nothing else
        st.query_params[name] = value
        link.written = {**link.written, name: value}


def address() -> Callable[[], list[str]]:
    """A function that returns the address of this screen as a line, for files that are made after the run; else no line."""
    link, url = _link(), st.context.url
    return lambda: [f"{url}?{urlencode(link.written)}"] if url else []


def written() -> tuple[str, dict[str, str]]:
    """The screen that ran last, and the values that it put into the address bar."""
    return _link().screen or "home", dict(_link().written)


def reopen(values: Mapping[str, str]) -> None:
    """Have the next screen that is drawn follow these values as it follows the link of a first visit."""
    follow_again()
    st.query_params.from_dict(dict(values))


def carry(key: str) -> None:
    """Before a widget that several screens have: keep its value from the last screen.

    To Streamlit, a widget with the same key on another screen is a new one, which would begin with its default.
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
