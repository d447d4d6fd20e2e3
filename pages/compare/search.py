"""“Find a difference”: a search through fresh inputs, a little in every run of the page, that types in what it finds."""

from __future__ import annotations

import random
from typing import get_args

import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.shared.background_job import TICK, Job
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import seed
from xformer.analysis.comparison import Search, Want, search

SEARCH = "search"
WITHIN = 5000
"""Inputs that a search looks at before it says that it found none."""


def ask_search(comparison: Comparison) -> None:
    """The button, and what is looked for."""
    with st.popover("Find a difference", icon=":material/search:", key="compare_find_open"):
        seed("want", get_args(Want), get_args(Want)[0], key="compare_want")
        want = st.radio(
            "Find me one on which they differ",
            get_args(Want),
            key="compare_want",
            persist_state="session",
            captions=("the first that turns up", "the fewest tokens to read", "both sides sure of themselves"),
        )
        st.button("Find", type="primary", key="compare_find", on_click=_start, args=(comparison, want), width="stretch")
        st.caption(
            f"At most {WITHIN:,} fresh inputs of the task are looked at. What counts is each player’s likeliest token given "
            "the right answer so far; no dice are thrown and no tokens replaced."
        )


def follow_search(comparison: Comparison) -> None:
    """How far the search has come; what it found is typed into the box."""
    job = state().job(SEARCH, comparison.players)
    ticks = job is not None and job.is_running
    st.fragment(_status, run_every=TICK if ticks else None)(comparison, ticks)


def _start(comparison: Comparison, want: Want) -> None:
    # Another seed each time: a second click finds another one.
    work = search(comparison.contenders(), want, within=WITHIN, seed=random.getrandbits(31))
    state().begin(SEARCH, comparison.players, work)


def _status(comparison: Comparison, ticks: bool) -> None:
    job: Job[Search] | None = state().job(SEARCH, comparison.players)
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(key="compare_search_status", horizontal=True, vertical_alignment="center", gap="small"):
        if job is None:
            return
        job.advance()
        report = job.latest
        if job.problem:
            st.warning(escape_markdown(job.problem), icon=":material/search_off:")
        elif report is not None:
            st.markdown(f":material/search: {_summary(job, report, comparison)}", width="content")
        if job.is_running and report is not None:
            st.progress(report.looked / report.within, width=260)
            st.button("Cancel", key="compare_search_cancel", on_click=job.cancel)
        else:
            st.button("", icon=":material/close:", type="tertiary", key="compare_search_close", on_click=_forget)
        if ticks and not job.is_running:
            if report is not None and report.found is not None:
                state().found_input = comparison.input.text(report.found.source)
            st.rerun()


def _forget() -> None:
    state().jobs.pop(SEARCH, None)


def _summary(job: Job[Search], report: Search, comparison: Comparison) -> str:
    """The state of the search in words."""
    summary, found = f"Cancelled: {report.sentence}" if job.cancelled else report.sentence, report.found
    is_seen = not comparison.has_decoder or comparison.forced or (found is not None and found.in_free_running)
    if job.is_running or found is None or is_seen:
        return summary
    return f"{summary} That is at step {found.step} when all are forced; free-running they part earlier or elsewhere."
