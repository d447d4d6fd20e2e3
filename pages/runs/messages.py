"""What stands above the table of runs: what went wrong, and a deletion taken back."""

from __future__ import annotations

import streamlit as st

from pages.runs.state import runs_state
from pages.shared import run_commands
from pages.shared.escape_markdown import escape_markdown


def messages() -> None:
    """What the last press of a button led to: a sentence where it could not be, and the way back from a deletion."""
    state = runs_state()
    with st.container(key="runs_bar"):  # always there: were it to appear, all below would be built anew in the browser
        if state.problem:
            st.warning(escape_markdown(state.problem), icon=":material/warning:")
            state.problem = ""
        if state.deleted:
            run, name = state.deleted
            with st.container(horizontal=True, vertical_alignment="center", gap="small", border=True):
                st.markdown(f":material/delete: Deleted “{escape_markdown(name)}”. It can be taken back for an hour.")
                st.button("Undo", icon=":material/undo:", on_click=_undo, args=(run,), key="runs_undo")
                st.button("Dismiss", on_click=_forget, type="tertiary", key="runs_dismiss")


def _undo(run: str) -> None:
    state = runs_state()
    if state.attempt(lambda: run_commands.undelete(run)):
        state.choose(*state.chosen, run)
    _forget()


def _forget() -> None:
    runs_state().deleted = None
