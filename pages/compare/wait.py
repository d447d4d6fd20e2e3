"""Waiting for players that take long: a bar that says how far they are, and a way to stop."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pages.compare.comparison import Comparison, Progress
from pages.compare.state import state
from pages.shared.background_job import Job, follow, progress
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
        follow(job, partial(_bar, job))
        return False
    return True


def _bar(job: Job[Progress]) -> None:
    share = 0.0 if job.latest is None else job.latest.done / job.latest.total
    stopped = "Stopped before all players had an answer."
    progress(job, "compare_wait", share, f"The players read and answer: {share:.0%}", stopped)
