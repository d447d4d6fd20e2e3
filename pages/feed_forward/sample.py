"""What the neurons of a model did over inputs sampled from its task: counted once for all visitors, a batch at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import streamlit as st

from pages.shared.shown_path import shown_path
from pages.shared.view import View
from xformer.analysis.neuron_survey import Survey, fitting, surveying
from xformer.subjects import TaskModel

STOPPED = "ff_stopped"
"""The models whose survey this visitor has stopped."""


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
            self.is_done = found is None or found.n_inputs == found.n_asked
            self.latest = found or self.latest
            assert self.latest is not None
            return self.latest


@st.cache_resource(max_entries=16, show_spinner=False)
def _work(model: str, _subject: TaskModel) -> _Work:
    return _Work(replace(found, path=shown_path(model)) for found in surveying(_subject, fitting(_subject)))


def surveyed(view: View) -> Survey | None:
    """What the neurons of a model did over the sample. The first time it takes a moment, with a bar and a way to stop it.

    Whatever a visitor clicks meanwhile ends the run of this screen; what was found so far is kept, and the next goes on. None,
    and it is said why, where there are no inputs to be had.
    """
    if view.task is None or view.input.missing:
        missing = view.input.missing or "Only for a model that was trained here it is known what to draw them from."
        st.info(f"No inputs can be sampled. {missing}", icon=":material/info:")
        return None
    work, stopped = _work(view.model, view.own), st.session_state.setdefault(STOPPED, set())
    place = st.empty()
    found = work.latest or work.step()
    if view.model in stopped and not work.is_done:
        with place.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"Stopped after {found.n_inputs:,} of {found.n_asked:,} inputs.", width="content")
            st.button("Go on", on_click=stopped.discard, args=(view.model,), key="survey_on", type="tertiary")
        return found
    bar = None
    while not work.is_done:
        said = f"Running the model on sampled inputs: {found.n_inputs:,} of {found.n_asked:,}"
        if bar is None:
            with place.container(horizontal=True, vertical_alignment="center"):
                bar = st.progress(found.n_inputs / found.n_asked, said)
                st.button("Stop", on_click=stopped.add, args=(view.model,), key="survey_stop", type="tertiary")
        bar.progress(found.n_inputs / found.n_asked, said)
        found = work.step()
    place.empty()
    return found
