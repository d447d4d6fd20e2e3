"""A screen in a frame on slides, with `?embed=true` in its address: only its picture and what is changed in it.

    with frame.picture():                  # a frame shows this part of the screen, and the chips
        attention_view(…)

All other parts are drawn and hidden, so that a link means the same in a frame. Streamlit itself hides its toolbar, and takes
the theme from `embed_options=dark_theme`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.controls import copy_address
from pages.shared.screens import Screen
from pages.shared.text import escape_markdown

ALONE = "picture"
"""The panel in the link of a frame that shows the picture without a panel."""
_MESSAGES = "frame_messages_here"
_STYLE = Path(__file__).parent / "frame.css"


def is_framed() -> bool:
    """Whether the visitor sees the picture alone."""
    return bool(st.context.is_embedded)


def begin(screen: Screen) -> DeltaGenerator:
    """Before a screen runs: the menu at the right of its title, or in a frame, hide what stands in no `picture`.

    Returns the place of further menus.
    """
    menus = st.container(key="share", horizontal=True, gap="small")
    with menus:
        if is_framed():
            st.html(_STYLE)
        else:
            with st.popover("Share", icon=":material/share:", type="tertiary"):
                usual = {"panel": screen.usual_panel} if screen.usual_panel else {}
                copy_address(key="copy_address", data={"title": screen.title, "usual": usual})
    if is_framed():
        st.session_state[_MESSAGES] = st.container(key="frame_said")
    return menus


def say(problem: str) -> None:
    """In a frame, show a problem above the picture: the sidebar, which shows it elsewhere, is hidden."""
    if is_framed():
        st.session_state[_MESSAGES].error(escape_markdown(problem), icon=":material/edit:")


def picture(part: str = "") -> DeltaGenerator:
    """A container that a frame shows; the second and later ones of a screen have names."""
    return st.container(key=f"picture_{part}" if part else "picture", gap="small")


def panels(below: Mapping[str, str]) -> dict[str, str]:
    """The panels to choose from below a picture; a frame has none until its link names one."""
    return ({ALONE: "the picture alone"} if is_framed() else {}) | dict(below)
