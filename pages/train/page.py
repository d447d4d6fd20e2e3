"""Train: can I watch it learn? One click starts a run; its attention, predictions and curves appear while it trains."""

from __future__ import annotations

import streamlit as st

from pages.compute import visible_runs
from pages.controls import embed
from pages.train.health import health_view
from pages.train.run import run_view
from pages.train.setup import setup
from pages.train.status import NEW, share, show_problem, shown_run
from pages.train.sweep import sweep_view
from xformer.integrations.health_record import HealthRecord


def page() -> None:
    visitor = visible_runs.visitor()
    entry = shown_run(visitor)
    if entry is not None and HealthRecord.is_in(visible_runs.store().folder_of(entry.id)):
        health_view(entry, visitor)
        return
    if entry is not None:
        (run_view if entry.sweep is None else sweep_view)(entry, visitor)
        return
    st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
    show_problem()
    if embed.is_framed():
        st.info("A frame shows the run named in its link: …&run=…", icon=":material/movie:")
    share(NEW, None)
    setup(visitor)


page()
