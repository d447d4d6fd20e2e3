"""What the neurons of a model did over inputs sampled from its task: counted once for all visitors, a batch at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import streamlit as st

from pages.shared.background_job import Job, follow, progress
from pages.shared.models import shown_path
from pages.shared.view import View
from xformer.adapters import TaskModel
from xformer.analysis.feed_forward import Survey, fitting, surveying

JOB = "ff_survey"
AT_ONCE = 0.5
"""Seconds of it before anything is drawn."""


@dataclass
class _Work:
    """A survey under way, which all visitors who wait for it drive on together."""

    steps: Iterator[Survey]
    lock: threading.Lock = field(default_factory=threading.Lock)
    latest: Survey | None = None
    is_done: bool = False

    def step(self) -> Survey:
        """One batch more, if there is one; what is known by then."""
        with self.lock:
            found = None if self.is_done else next(self.steps, None)
            self.is_done = found is None or found.is_final
            self.latest = found or self.latest
            assert self.latest is not None
            return self.latest


@st.cache_resource(max_entries=16, show_spinner=False)
def _work(model: str, _subject: TaskModel) -> _Work:
    return _Work(replace(found, path=shown_path(model)) for found in surveying(_subject, fitting(_subject)))


def _driven(work: _Work) -> Iterator[Survey]:
    while True:
        yield work.step()


def surveyed(view: View) -> Survey | None:
    """What the neurons of a model did over the sample, as far as it was run: the rest is run while one looks at that.

    What was found is kept for whoever comes next. None, and it is said why, where there are no inputs to be had.
    """
    if view.task is None or view.input.missing:
        missing = view.input.missing or "Only for a model that was trained here it is known what to draw them from."
        st.info(f"No inputs can be sampled. {missing}", icon=":material/info:")
        return None
    job: Job[Survey] | None = st.session_state.get(JOB)
    if job is None or job.about != view.model:
        job = st.session_state[JOB] = Job(_driven(_work(view.model, view.own)), view.model)
        job.advance(AT_ONCE)
    found = job.latest
    assert found is not None
    with st.container(key="survey_bar"):
        follow(job, partial(_bar, job))
    return found


def _bar(job: Job[Survey]) -> None:
    """How much of the sample is run, and what all that is shown is about meanwhile."""
    if (found := job.latest) is not None and not found.is_final:
        far = f"{found.n_inputs:,} of {found.n_asked:,}"
        words = f"Running the model on sampled inputs: {far}"
        progress(job, "survey", found.n_inputs / found.n_asked, words, f"Stopped after {far} inputs.")
