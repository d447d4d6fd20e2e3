"""All screens, found by their folders: the navigation, Home's map and every "open on …" menu read them here.

A new screen is one new folder of `pages/` with a `page.py`, and a `SCREEN` in its `__init__.py`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from pages.shared.screen import Screen

_PAGES = Path(__file__).parents[1]


@cache
def screens() -> dict[str, Screen]:
    """The screens by the names of their folders, in their order."""
    found = {path.parent.name: import_module(f"pages.{path.parent.name}").SCREEN for path in _PAGES.glob("*/page.py")}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def file_of(name: str) -> str:
    """What `st.switch_page` and `st.page_link` take to go there."""
    return f"pages/{name}/page.py"


def of_a_model() -> dict[str, str]:
    """The screens that show one model, by title, each with its file."""
    return {screen.title: file_of(name) for name, screen in screens().items() if screen.shows_a_model}


def navigation() -> dict[str, list[StreamlitPage]]:
    """The pages for `st.navigation`, by the heading under which they stand."""
    groups: dict[str, list[StreamlitPage]] = {}
    for index, (name, screen) in enumerate(screens().items()):
        icon = f":material/{screen.icon}:"
        page = st.Page(file_of(name), title=screen.title, icon=icon, url_path=name, default=index == 0)
        groups.setdefault(screen.group, []).append(page)
    return groups
