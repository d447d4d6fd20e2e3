"""“How long can it go?”: right answers by length of input, counted a little at a time; and what makes it go on, or stop."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from pages.shared.background_job import Job, follow, progress
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.notebook import heading
from pages.shared.picture import footer, shown
from pages.shared.view import View
from xformer import viz
from xformer.analysis.scoring import HIGH, LengthsDone, asking_lengths, has_mastered_its_training, how_far
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.words import percent

FIRST_WORK = 0.3
"""Seconds of counting before anything is drawn."""


def how_long_panel(view: View) -> None:
    """The curve as far as it is counted; the sentence when it is complete."""
    original = view.original()
    job: Job[LengthsDone] | None = st.session_state.get("lengths")
    if job is None or job.about != view.model:
        job = st.session_state["lengths"] = Job(asking_lengths(original), view.model)
        job.advance(FIRST_WORK)
    follow(job, partial(_curve, view, original, job))


def _curve(view: View, original: Reading, job: Job[LengthsDone]) -> None:
    found = job.latest
    if found is None:
        st.info(escape_markdown(job.problem), icon=":material/info:")
        return
    task, table = view.own.task, found.frame()
    if not found.is_final:
        words = f"{len(found.rows)} of {found.total} lengths"
        progress(job, "how_long_bar", len(found.rows) / found.total, words, f"{words} are counted.")
    heading(_sentence(task, table) if found.is_final else "")
    call = Call(viz.accuracy_by_length, (original,), {"unit": task.rule.unit, "table": table})
    shown(view, call, "how_long")
    st.caption(
        f"{found.rows[0]['samples']} fresh inputs of each length, asked just now of the model as it is, without changes; "
        "the band is the 95 % interval of whole answers, the shaded lengths are those that its training showed it."
    )
    footer(view, "how_long", [call], lambda: table)


def _sentence(task: Task, table: pd.DataFrame) -> str:
    """How far it goes beyond its training, where that went well."""
    shortest, longest, least = task.config.min_len, task.config.max_len, percent(HIGH, 0)
    if not has_mastered_its_training(table):
        return f"Trained on {shortest} to {longest} {task.rule.unit}, it does not get {least} right at each of these lengths"
    far = how_far(table)
    if far is None:
        return f"Trained on {shortest} to {longest} {task.rule.unit}, it already fails at {longest + 1}"
    return f"Trained on at most {longest} {task.rule.unit}, it gets {least} or more right at every length up to {far}"
