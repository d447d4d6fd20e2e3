"""The scene: the input on its way through the model, with a box to change it; every part leads to its screen."""

from __future__ import annotations

import streamlit as st

from pages.components.scene import scene
from pages.shared import screens
from pages.shared.view import View
from xformer.widgets.scene_data import scene_data

DRAWN = frozenset({"image", "picture"})
"""The kinds of input that are no text."""


def scene_panel(view: View) -> None:
    """The run of the model, the changed one where there are changes."""
    reading = view.changed() or view.original()
    typed = None if view.input.kind in DRAWN else view.input.text(view.source)
    clicked = scene(scene_data(reading, typed), key="scene", typed=_type)
    if clicked is not None:
        head = {"head": clicked.head} if clicked.head else {}
        st.switch_page(screens.file_of(clicked.screen), query_params=head)  # the sidebar keeps its model and input


def _type(text: str) -> None:
    st.session_state["input"] = text
