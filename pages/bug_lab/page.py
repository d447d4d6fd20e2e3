"""Bug lab: what does a broken transformer look like? One mistake at a time, next to the correct model."""

from __future__ import annotations

import streamlit as st

from pages.bug_lab.browse import browse
from pages.bug_lab.game import game_panel, rounds_panel
from pages.bug_lab.lab import TAB
from pages.bug_lab.your_model import your_model
from pages.compute.picture import panel
from pages.controls.widgets import choose_unlinked
from pages.state.link import keep_widget_value, take_parameter
from pages.state.session import open_sidebar

TABS = {"find": "Find the bug", "browse": "Browse all bugs", "yours": "Your model"}
QUESTION = "What does a broken transformer look like?"
OWN_QUESTION = "Does your model compute what it should?"


def page() -> None:
    wanted = take_parameter("bug")
    if (tab := take_parameter("tab")) in TABS:
        st.session_state[TAB] = tab
    if wanted is not None or (TAB not in st.session_state and {"show", "own", "model"} & set(st.query_params)):
        st.session_state[TAB] = "browse"
    st.session_state.setdefault(TAB, "find")
    keep_widget_value(TAB)
    if st.session_state[TAB] == "find":
        st.title(f"Bug lab :small[:gray[{QUESTION}]]", anchor=False)
        _ask_tab()
        game_panel()
    else:
        opened = open_sidebar("Bug lab", OWN_QUESTION if st.session_state[TAB] == "yours" else QUESTION)
        _ask_tab()
        if st.session_state[TAB] == "yours":
            panel(your_model, opened)
        else:
            browse(opened.view(), wanted)


def _ask_tab() -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        choose_unlinked("Tab", TABS, TAB)
        if st.session_state[TAB] == "find":
            rounds_panel()


page()
