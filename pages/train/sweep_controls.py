"""What a person may tell a sweep: stop, resume, train the same again."""

from __future__ import annotations

import streamlit as st

from pages.shared import run_commands, run_store
from pages.train.state import start_once, train_state
from pages.train.status import button, run_row
from xformer.training.entry import RESUMABLE, Entry


def sweep_controls(entry: Entry, who: str) -> None:
    """The row of buttons of a sweep; whoever may not control it looks on."""
    with run_row(entry):
        if run_store.may_control(entry, who):
            if entry.state in ("queued", "running"):
                button("Stop", "stop", lambda: run_commands.stop(entry.id))
            elif entry.state in RESUMABLE:
                button("Resume", "play_arrow", lambda: run_commands.resume(entry.id), type="primary")
        if not (entry.is_active or entry.state == "queued"):
            ticket = train_state().next_ticket()
            st.button(
                "Train the same again",
                icon=":material/replay:",
                on_click=start_once,
                args=(ticket, lambda: run_commands.again(entry.id, f"{entry.name} again"[:80])),
                disabled=not who,
                key="run_again",
            )
