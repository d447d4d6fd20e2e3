"""What stands above the table of runs: a file from elsewhere taken in, what went wrong, and a deletion taken back."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.literal import literal
from pages.shared.runs_table import CHOSEN, choose
from xformer.errors import RunStoreError, XformerError
from xformer.training.transfer import ImportResult

MAX_MEGABYTES = 64
"""The largest file that is taken; the model with the most parameters that a server trains by default takes 80."""
SAID, WRONG, DELETED = "runs_said", "runs_wrong", "runs_deleted"


def upload(who: str, then: Callable[[ImportResult], None], *, key: str) -> None:
    """A place to drop a file of weights, which goes into the run store; `then` is called with where it has come to be.

    What came of it, or why the file is refused, is said below, once.
    """
    if not who:
        st.caption(run_commands.NOBODY)
        return
    if not run_store.is_open():
        st.caption("Only you will see it, until you share it with everyone here.")
    number = st.session_state.setdefault(f"{key}_number", 0)  # another number empties the box
    st.file_uploader(
        "A .safetensors file that was downloaded here or on another server",
        type=["safetensors"],
        max_upload_size=MAX_MEGABYTES,
        key=f"{key}_{number}",
        on_change=_take,
        args=(then, key),
    )
    if wrong := st.session_state.pop(f"{key}_{WRONG}", ""):
        st.error(literal(wrong), icon=":material/error:")
    if said := st.session_state.pop(f"{key}_{SAID}", ""):
        st.success(literal(said), icon=":material/check:")


def _take(then: Callable[[ImportResult], None], key: str) -> None:
    file = st.session_state[f"{key}_{st.session_state[f'{key}_number']}"]
    if file is None:
        return
    st.session_state[f"{key}_number"] += 1
    try:
        taken = run_commands.take_file(file.getvalue(), file.name)
    except (XformerError, OSError) as error:
        st.session_state[f"{key}_{WRONG}"] = f"The file was not taken. {error}"
        return
    step = f"step {taken.step:,}"
    st.session_state[f"{key}_{SAID}"] = (
        f"“{taken.name}”, {step}, is among your runs now."
        if taken.is_new
        else f"These weights are here already: they are “{taken.name}”, {step}."
    )
    then(taken)


def bar() -> None:
    """What the last press of a button led to: a sentence where it could not be, and the way back from a deletion."""
    with st.container(key="runs_bar"):  # always there: were it to appear, all below would be built anew in the browser
        if wrong := st.session_state.pop(WRONG, ""):
            st.warning(literal(wrong), icon=":material/warning:")
        if deleted := st.session_state.get(DELETED):
            run, name = deleted
            with st.container(horizontal=True, vertical_alignment="center", gap="small", border=True):
                st.markdown(f":material/delete: Deleted “{literal(name)}”. It can be taken back for an hour.")
                st.button("Undo", icon=":material/undo:", on_click=_undo, args=(run,), key="runs_undo")
                st.button("Dismiss", on_click=_forget, type="tertiary", key="runs_dismiss")


def attempt(what: Callable[[], object]) -> bool:
    """Do something to the run store in a callback; False where it refuses, and the bar then says why."""
    try:
        what()
    except (RunStoreError, XformerError) as error:
        st.session_state[WRONG] = str(error)
        return False
    return True


def _undo(run: str) -> None:
    if attempt(lambda: run_commands.undelete(run)):
        choose(*st.session_state.get(CHOSEN, []), run)
    _forget()


def _forget() -> None:
    st.session_state.pop(DELETED, None)
