"""Train: can I watch it learn? One press starts a run; its attention, predictions and curves form on the screen."""

from __future__ import annotations

import streamlit as st

from pages.shared import frame, run_store
from pages.train.run import run_view
from pages.train.setup import setup
from pages.train.state import NEW, share, show_complaint, shown_run
from pages.train.sweep import sweep_view


def page() -> None:
    who = run_store.who()
    entry = shown_run(who)
    if entry is not None:  # with the name of the screen in the run's own row: the room is for pictures
        (run_view if entry.sweep is None else sweep_view)(entry, who)
        return
    st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
    show_complaint()
    if frame.is_framed():
        st.info("A frame shows a run that its link names: …&run=…", icon=":material/movie:")
    share(NEW, None)
    setup(who)


page()
