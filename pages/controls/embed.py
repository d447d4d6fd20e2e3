"""A screen embedded in slides (`?embed=true` in its address): only its picture and the chips of its changes are visible.

    with frame.picture():                  # a frame shows this part of the screen, and the chips
        attention_view(…)

All other parts are drawn but hidden, so that a link means the same in a frame. Streamlit itself hides its toolbar and takes the
theme from `embed_options=dark_theme`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.elements import copy_address
from pages.controls.text import escape_markdown
from pages.state.screens import Screen

ALONE = "picture"
"""The value of `panel` in the link of a frame that shows no panel below the picture."""
_MESSAGES = "frame_messages_here"
_STYLE = Path(__file__).parent / "embed.css"
_STAGE_VIEW = Path(__file__).parent / "stage_view.css"


def is_framed() -> bool:
    """Whether the screen is embedded in a frame."""
    return bool(st.context.is_embedded)


def begin(screen: Screen) -> DeltaGenerator:
    """Call before a screen runs: draw the Share menu next to its title or, in a frame, hide everything outside `picture`.

    Returns the container for further menus.
    """
    menus = st.container(key="share", horizontal=True, gap="small")
    with menus:
        if is_framed():
            st.html(_STYLE)
        else:
            css = _STAGE_VIEW.read_text("utf-8").replace("EMBED", _STYLE.read_text("utf-8"))
            st.html(f"<style>{css}</style>")
            with st.popover("Share", icon=":material/share:", type="tertiary"):
                usual = {"panel": screen.usual_panel} if screen.usual_panel else {}
                copy_address(key="copy_address", data={"title": screen.title, "usual": usual})
    if is_framed():
        st.session_state[_MESSAGES] = st.container(key="frame_said")
    return menus


def say(problem: str) -> None:
    """Show a problem above the picture of a frame, which hides the sidebar where it is shown otherwise."""
    if is_framed():
        st.session_state[_MESSAGES].error(escape_markdown(problem), icon=":material/edit:")


def picture(part: str = "") -> DeltaGenerator:
    """Return a container that is visible in a frame; a screen's second and later ones need a name."""
    return st.container(key=f"picture_{part}" if part else "picture", gap="small")


def panels(below: Mapping[str, str]) -> dict[str, str]:
    """Return the panels to choose from below a picture; a frame shows none unless its link names one."""
    return ({ALONE: "the picture alone"} if is_framed() else {}) | dict(below)
