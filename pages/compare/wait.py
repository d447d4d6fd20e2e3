"""Waiting for players that take long: a bar that says how far they are, and a way to stop."""

from __future__ import annotations

import streamlit as st

from pages.compare.comparison import Comparison, Progress
from pages.compare.state import progress, state
from pages.shared.background_job import TICK, Job
from pages.shared.escape_markdown import escape_markdown

AT_ONCE = 1.5
"""Seconds that a page may take before it says how far it is."""


def wait_for_rollouts(comparison: Comparison) -> bool:
    """Whether all players have said what they say; until then how far they are, and why where they cannot."""
    job = state().job("rollouts", comparison.about)
    if job is None:
        job = state().begin("rollouts", comparison.about, comparison.rolling_out())
        job.advance(AT_ONCE)
    if job.problem:
        st.error(escape_markdown(job.problem), icon=":material/error:")
        return False
    if job.is_running or job.cancelled:
        st.fragment(_bar, run_every=TICK if job.is_running else None)(job, job.is_running)
        return False
    return True


def _bar(job: Job[Progress], ticks: bool) -> None:
    """`ticks` says whether it runs again by itself."""
    if ticks:
        job.advance()
    if job.is_running != ticks:  # it has ended, or goes on after all
        st.rerun()
    share = 0.0 if job.latest is None else job.latest.done / job.latest.total
    stopped = "Stopped before all players had an answer."
    progress(job, "compare_wait", share, f"The players read and answer: {share:.0%}", stopped)
