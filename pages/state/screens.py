"""The registry of screens, used by the navigation, the map on Home and the "open on …" menus.

A new screen is a folder of `pages/` with a `page.py`, and a `SCREEN` in its `__init__.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import streamlit as st

_PAGES = Path(__file__).parents[1]


@dataclass(frozen=True)
class Screen:
    """A folder `pages/NAME`, whose `page.py` draws the screen at the address /NAME."""

    title: str
    place: int
    """Its position among the screens; the first one is the start page."""
    shows_a_model: bool = False
    """Whether it shows one model with one input, so that a step of a run can be opened there."""
    usual_panel: str = ""
    """The panel below its picture that is open by default, except in a frame; empty for none."""


@cache
def screens() -> dict[str, Screen]:
    """Return the screens by folder name, in their order."""
    found = {path.parent.name: import_module(f"pages.{path.parent.name}").SCREEN for path in _PAGES.glob("*/page.py")}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def file_of(name: str) -> str:
    """Return the path of a screen for `st.switch_page` and `st.page_link`."""
    return f"pages/{name}/page.py"


def link(name: str, label: str, icon: str, **parameters: str) -> None:
    """Draw a link to a screen with these link parameters; `icon` is the name of a Material symbol."""
    st.page_link(file_of(name), label=label, icon=f":material/{icon}:", query_params=parameters)


def of_a_model() -> dict[str, str]:
    """Return the paths of the screens that show one model, by title."""
    return {screen.title: file_of(name) for name, screen in screens().items() if screen.shows_a_model}


def navigation() -> list[st.Page]:
    """Return the pages for `st.navigation`, in their order."""
    return [
        st.Page(file_of(name), title=screen.title, url_path=name, default=index == 0)
        for index, (name, screen) in enumerate(screens().items())
    ]
