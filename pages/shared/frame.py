"""A screen in a frame of somebody's slides, with `?embed=true` in its address: its picture alone, and what is changed in it.

    with frame.picture():                  # all that a frame shows of this screen, besides the chips
        attention_view(…)

What stands in no `picture` is drawn as always and hidden, so that a link means the same in a frame. Streamlit itself hides its
toolbar, and takes the theme of `embed_options=dark_theme`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.copy_address import copy_address
from pages.shared.escape_markdown import escape_markdown
from pages.shared.screen import Screen

ALONE = "picture"
"""What the link of a frame says in place of a panel: the picture without one."""
_SAID = "frame_said_here"
_STYLE = Path(__file__).parent / "frame.css"


def is_framed() -> bool:
    """Whether the visitor sees the picture alone."""
    return bool(st.context.is_embedded)


def begin() -> None:
    """Before a screen runs: hide what stands in no picture."""
    with st.container(key="frame_style"):
        if is_framed():
            st.html(_STYLE)
    if is_framed():
        st.session_state[_SAID] = st.container(key="frame_said")


def say(problem: str) -> None:
    """In a frame, say above the picture what the sidebar says, which nobody sees there."""
    if is_framed():
        st.session_state[_SAID].error(escape_markdown(problem), icon=":material/edit:")


def picture(part: str = "") -> DeltaGenerator:
    """A container for what a frame shows; the second and later ones of a screen have names."""
    return st.container(key=f"picture_{part}" if part else "picture", gap="small")


def also(part: str) -> DeltaGenerator:
    """A container for what stands beside the picture: a frame shows it where it is high enough for both."""
    return st.container(key=f"picture_also_{part}", gap="small")


def panels(below: Mapping[str, str]) -> dict[str, str]:
    """The panels below a picture that one can choose from: in a frame none, until its link asks for one."""
    return ({ALONE: "the picture alone"} if is_framed() else {}) | dict(below)


def offer(screen: Screen) -> None:
    """The buttons that copy the address of what is shown, and the frame with it, at the end of the sidebar."""
    with st.sidebar:
        copy_address(
            screen.title, usual={"panel": screen.usual_panel} if screen.usual_panel else {}, key="copy_address"
        )
