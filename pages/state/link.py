"""Deep links: the parameters of a link are applied once, and the state of a screen is written back into the address bar.

A screen starts from the parameters of the link and shares its own state:

    panel = choose("panel", PANELS, "Panel")             # pages.controls.widgets: reads and writes its parameter
    scale = take_parameter("scale")                      # "own" if it is in the link, only once; else None
    view.share(scale=scale)                              # or share({...}) on a screen without a view

app.py calls `begin` before every screen and `finish` after it; a fragment that reruns alone writes at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import streamlit as st

from pages.controls.streamlit_compat import is_history_navigation

_KEY = "link"


@dataclass
class _Link:
    """The state of one visit's link."""

    screen: str | None = None
    """The screen that is running, or ran last."""
    settled: str | None = None
    """The screen that has run to completion since it was opened."""
    is_running: bool = False
    pending: dict[str, str] = field(default_factory=dict)
    """Link parameters that are not applied yet."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Parameters set by the widgets of this screen."""
    shared: dict[str, str] | None = None
    """Parameters that the screen shared."""
    written: dict[str, str] = field(default_factory=dict)
    """The parameters last written to the address bar. After two quick clicks the browser still sends the old ones."""
    is_waiting: bool = False
    """Whether the screen is incomplete, so that the link parameters are kept for its next run."""


def _link() -> _Link:
    return st.session_state.setdefault(_KEY, _Link())


def begin(screen: str) -> None:
    """Call before a screen runs: read the link on the first visit, on another screen, and after Back and Forward."""
    link, now = _link(), st.query_params.to_dict()
    if link.screen != screen or is_history_navigation():
        link.pending, link.settled, link.screen, link.written = current_parameters(screen, now), None, screen, now
    link.is_running, link.is_waiting, link.chosen, link.shared = True, False, {}, None


def follow_again() -> None:
    """Call before `st.switch_page`: apply its query parameters even if the screen stays the same."""
    _link().screen = None


def finish() -> None:
    """Call after a screen has run to completion: write its link."""
    link = _link()
    link.is_running = False
    if link.is_waiting:
        return
    link.pending, link.settled = {}, link.screen
    if link.shared is not None:
        _write_shared(link, link.shared)


def wait() -> None:
    """Mark the screen as incomplete in this run, so that the link parameters are kept."""
    _link().is_waiting = True


def begin_part() -> None:
    """Call before a fragment with all widgets of its screen: drop their values, so that removed widgets leave the link."""
    link = _link()
    link.chosen, link.shared = {}, None


def take_parameter(name: str) -> str | None:
    """Return a link parameter the first time it is requested; None afterwards or if it is missing."""
    return _link().pending.pop(name, None)


def pending_parameter(name: str) -> str | None:
    """Return a link parameter that no screen has applied yet, and leave it for the next run; None if it is missing."""
    return _link().pending.get(name)


def is_just_opened() -> bool:
    """Whether the screen has not run to completion since its link was read: a parameter that is missing has its default."""
    link = _link()
    return link.settled != link.screen


def share(link: Mapping[str, str]) -> None:
    """Put these parameters, and those of the widgets, into the address bar."""
    ours = _link()
    ours.shared = dict(link)
    if not ours.is_running:
        _write_shared(ours, ours.shared)


def set_parameter(name: str, value: str) -> None:
    """Record a widget's value for the link; "" leaves it out."""
    link = _link()
    link.chosen[name] = value
    if not link.is_running and link.shared is not None:  # a fragment that shares nothing else
        _write(link, link.written | {name: value})


def address() -> Callable[[], list[str]]:
    """Return a function that returns the address of this screen in a list, for files created after the run; [] if unknown."""
    link, url = _link(), st.context.url
    return lambda: [f"{url}?{urlencode(link.written)}"] if url else []


def written() -> tuple[str, dict[str, str]]:
    """Return the screen that ran last, and the parameters that it wrote to the address bar."""
    return _link().screen or "home", dict(_link().written)


def reopen(values: Mapping[str, str]) -> None:
    """Make the next run apply these parameters as if a link with them had been opened."""
    follow_again()
    st.query_params.from_dict(dict(values))


def keep_widget_value(key: str) -> None:
    """Call before a widget that several screens have: keep its value from the last screen.

    Streamlit treats a widget with the same key on another screen as a new one, which would start with its default.
    """
    if is_just_opened() and key in st.session_state:
        st.session_state[key] = st.session_state[key]


def _write_shared(link: _Link, shared: Mapping[str, str]) -> None:
    """Write the parameters in the order of the shared ones, which win over those of the widgets."""
    _write(link, {**shared, **link.chosen, **shared})


def _write(link: _Link, parameters: Mapping[str, str]) -> None:
    shown = {name: value for name, value in parameters.items() if value or name not in link.chosen}
    if not (st.query_params.to_dict() == shown == link.written):
        st.query_params.from_dict(shown)
        link.written = shown


VALUES: dict[str, Mapping[str, str]] = {
    "compare": {"players": "models"},
    "order": {"swapped": "shuffled"},
    "panel": {
        "scores of all heads": "scores",
        "step by step": "steps",
        "why here?": "score_attribution",
        "change the run": "change",
    },
    "picture": {"token": "ranked"},
    "scale": {"rest": "without_first_token", **{f"{number}": f"{number}.0" for number in range(-5, 6)}},
    "score": {"the task’s": "task_pattern", "anti-diagonal": "anti_diagonal"},
    "show": {"own": "offsets"},
}
"""Old values of each parameter with the current ones. An old value that a screen still knows keeps its meaning there."""
_ABLATE = re.compile(r"\b(silence|mute|neuron):")
"""Prefixes of changes that are now `ablate:`."""
_CHANGES = ("edits", "a", "b", "c", "d")
"""Parameters with changes: those of the view, and of the variants on Compare."""


def current_value(name: str, value: str, options: Iterable[str]) -> str:
    """Return the current form of a parameter's value, given the valid values."""
    return value if value in options else VALUES.get(name, {}).get(value, value)


def current_parameters(screen: str, link: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a link in their current form."""
    found = {name: _ABLATE.sub("ablate:", value) if name in _CHANGES else value for name, value in link.items()}
    if screen == "bug_lab" and "bug" in found:
        found["bug"] = found["bug"].replace("-", "_")
    if screen == "first_principles" and (head := found.get("head", "")).isdecimal():  # layer and head, counted from 0
        layer = found.pop("layer", "0")
        found["head"] = f"{int(layer) + 1 if layer.isdecimal() else 1}.{int(head) + 1}"
    if screen == "runs" and not {"state", "tag"}.isdisjoint(found):
        found["find"] = " ".join(filter(None, (found.pop(name, "") for name in ("find", "state", "tag"))))
    return found
