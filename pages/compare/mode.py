"""How players go on: each with what it said itself, or all with the right answer."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.compare.comparison import Choice
from pages.shared.link_widgets import seed

MODES = {"free": "free-running", "forced": "forced"}
OPEN_MODES = {"free": "go on", "forced": "along it"}


def ask_forced(choices: Sequence[Choice]) -> bool:
    """Whether all are led along the right answer; only who writes one token after the other can be."""
    seed("mode", list(MODES), "free", key="compare_mode")
    if all(choice.shape.architecture == "encoder" for choice in choices):
        return False
    is_open = choices[0].subject.input.goes_on
    mode = st.segmented_control(
        "They go on",
        list(MODES),
        format_func=(OPEN_MODES if is_open else MODES).__getitem__,
        required=True,
        key="compare_mode",
        persist_state="session",
        label_visibility="collapsed",
        width="content",
        help="Go on: each writes on after the whole text. Along it: each says what comes next at every character."
        if is_open
        else "Free-running, each goes on with what it said. Forced, each is given the right answer so far.",
    )
    return mode == "forced"
