"""Which run the Train screen shows: the one of the link, else the visitor's latest, else none."""

from __future__ import annotations

import re

import streamlit as st

from pages.shared import link, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import not_here
from pages.train.state import NEW, go_to, train_state
from xformer.errors import RunStoreError
from xformer.training.entry import Entry


def shown_run(who: str) -> Entry | None:
    """The run to show, or None where one is to be set up."""
    state = train_state()
    if (run := link.asked("run")) is not None:
        _follow_the_link(run)
    if state.run is None:
        mine = [entry for entry in _entries() if entry.owner == who]
        state.run = mine[0].id if mine and who else None
    if state.run in (None, NEW):
        return None
    try:
        entry = run_store.entry(state.run)
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
        entry = None
    if entry is None or entry.deleted is not None:
        if entry is not None:
            st.warning("This run was deleted; the Runs screen can bring it back for an hour.")
        state.run = NEW
        return None
    return entry


def _entries() -> list[Entry]:
    try:
        return run_store.entries()
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
        return []


def _follow_the_link(asked: str) -> None:
    state = train_state()
    if asked == NEW:
        state.run = NEW
        return
    try:
        if not re.fullmatch(r"[0-9a-f]{8}", asked, re.ASCII):
            raise RunStoreError
        run_store.entry(asked)
    except RunStoreError:
        not_here("run")
        return
    state.run = asked
    step = link.asked("step")
    if step is None:
        return
    if re.fullmatch(r"\d{1,9}", step, re.ASCII):
        go_to(asked, int(step))
    else:
        not_here("step")
