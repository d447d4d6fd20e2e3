"""Which run the Train screen shows: the one of the link, else the visitor's latest, else none; and what went wrong last."""

from __future__ import annotations

import re

import streamlit as st

from pages.components.training_player import put_at
from pages.shared import run_store
from pages.shared.ask import not_here
from pages.shared.literal import literal
from xformer.errors import RunStoreError
from xformer.training.run_store import Entry

NEW = "new"
"""What the link says, and the session holds, where a run is set up."""


def shown_run(who: str) -> Entry | None:
    """The run to show, or None where one is to be set up."""
    asked = st.query_params.get("run")
    if asked is not None and asked != st.session_state.get("train_shared"):
        _follow_the_link(asked)
    chosen = st.session_state.get("train_run")
    if chosen is None:
        mine = [entry for entry in _entries() if entry.owner == who]
        chosen = st.session_state["train_run"] = mine[0].id if mine and who else None
    if chosen in (None, NEW):
        return None
    try:
        entry = run_store.entry(chosen)
    except RunStoreError as error:
        st.warning(literal(str(error)))
        entry = None
    if entry is None or entry.deleted is not None:
        if entry is not None:
            st.warning("This run was deleted; the Runs screen can bring it back for an hour.")
        st.session_state["train_run"] = NEW
        return None
    return entry


def show_run(run: str) -> None:
    """Show this run from now on; `NEW` sets one up. A callback, or followed by `st.rerun()`."""
    st.session_state["train_run"] = run


def film_key(run: str) -> str:
    """The key of the player of a run: every run has one of its own, so that none begins where another was."""
    return f"film_{run}"


def share(run: str, step: int | None) -> None:
    """Put the run, and the step where the player rests on one, into the address bar."""
    st.session_state["train_shared"] = run
    link = {"run": run} | ({} if step is None else {"step": str(step)})
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)


def go_to(run: str, step: int | None) -> None:
    """Have the player of a run go to a step; None is its latest."""
    put_at(film_key(run), step)
    told = st.session_state.setdefault("train_told", {})
    told[run] = (told.get(run, (0, None))[0] + 1, step)


def told(run: str) -> tuple[int, int | None]:
    """(order, step): where the player of a run was told to go, and how often it was."""
    return st.session_state.get("train_told", {}).get(run, (0, None))


def complain(error: Exception) -> None:
    """Have the page say what went wrong, once."""
    words = f"A file could not be written: {error.strerror or error}." if isinstance(error, OSError) else str(error)
    st.session_state["train_complaint"] = words


def show_complaint() -> None:
    """What went wrong since the page was last drawn; its place is always there, so that nothing below is built anew."""
    with st.container(key="train_complaints"):
        if words := st.session_state.pop("train_complaint", None):
            st.warning(literal(words), icon=":material/report:")


def _entries() -> list[Entry]:
    try:
        return run_store.entries()
    except RunStoreError as error:
        st.warning(literal(str(error)))
        return []


def _follow_the_link(asked: str) -> None:
    st.session_state["train_shared"] = asked
    if asked == NEW:
        st.session_state["train_run"] = NEW
        return
    try:
        if not re.fullmatch(r"[0-9a-f]{8}", asked, re.ASCII):
            raise RunStoreError
        run_store.entry(asked)
    except RunStoreError:
        not_here("run")
        return
    st.session_state["train_run"] = asked
    step = st.query_params.get("step")
    if step is None:
        return
    if re.fullmatch(r"\d{1,9}", step, re.ASCII):
        go_to(asked, int(step))
    else:
        not_here("step")
