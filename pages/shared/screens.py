"""All screens: the navigation, Home's map and the "open on …" menus read them here.

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
    """Its rank among the screens; a visitor without a link arrives at the first."""
    shows_a_model: bool = False
    """Whether it shows one model with one input, so that a step of a run can be opened there."""
    short: str = ""
    """Its name in the navigation, where that is not the title."""
    usual_panel: str = ""
    """The panel below its picture that is open at first, except in a frame; empty for none."""


@cache
def screens() -> dict[str, Screen]:
    """The screens by the names of their folders, in their order."""
    found = {path.parent.name: import_module(f"pages.{path.parent.name}").SCREEN for path in _PAGES.glob("*/page.py")}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def file_of(name: str) -> str:
    """The path of a screen, as `st.switch_page` and `st.page_link` take it."""
    return f"pages/{name}/page.py"


def of_a_model() -> dict[str, str]:
    """The paths of the screens that show one model, by title."""
    return {screen.title: file_of(name) for name, screen in screens().items() if screen.shows_a_model}


def navigation() -> list[st.Page]:
    """The pages for `st.navigation`, in their order."""
    return [
        st.Page(file_of(name), title=screen.short or screen.title, url_path=name, default=index == 0)
        for index, (name, screen) in enumerate(screens().items())
    ]
