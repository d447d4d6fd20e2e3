"""Waiting for players that take long: a bar that says how far they are, and a way to stop."""

from __future__ import annotations

import streamlit as st

from pages.compare.match import Match, Progress
from pages.shared.background_job import TICK, Job
from pages.shared.literal import literal

JOB = "compare_playing"
AT_ONCE = 1.5
"""Seconds that a page may take before it says how far it is."""


def wait_for_plays(match: Match) -> bool:
    """Whether all players have said what they say; until then how far they are, and why where they cannot."""
    about = f"{match.order}|{match.names}"
    job = st.session_state.get(JOB)
    if not isinstance(job, Job) or job.about != about:
        job = st.session_state[JOB] = Job(match.playing(), about)
        job.advance(AT_ONCE)
    if job.problem:
        st.error(literal(job.problem), icon=":material/error:")
        return False
    if job.is_running or job.cancelled:
        st.fragment(_bar, run_every=TICK if job.is_running else None)(job, job.is_running)
        return False
    return True


def _bar(job: Job[Progress], ticks: bool) -> None:
    """`ticks` says whether it runs again by itself."""
    if ticks:
        job.advance()
        if not job.is_running:
            st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_wait"):
        if job.cancelled:
            st.markdown("Stopped before all players had an answer.", width="content")
            st.button("Go on", icon=":material/play_arrow:", key="compare_wait_on", on_click=_resume, args=(job,))
            return
        report = job.latest
        share = 0.0 if report is None else report.done / report.total
        st.progress(share, f"The players read and answer: {share:.0%}", width=420)
        st.button("Cancel", key="compare_wait_cancel", on_click=job.cancel)


def _resume(job: Job[Progress]) -> None:
    job.cancelled = False
