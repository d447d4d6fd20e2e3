"""Training twice from the same first weights on the same batches, once with the bug: a little in each run of the page."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from pages.bug_lab.lesson import Lesson, lab_preset, lesson, lesson_code
from pages.bug_lab.state import state
from pages.shared.background_job import TICK, Job
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.link_widgets import seed
from pages.shared.notebook import code_and_data
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.viz.theme import HEAD_HUES
from xformer.viz.training import Curves, curve_chart

STEPS = (200, 800)
MOST_KEPT = 6
"""Lessons of one visit."""
BUDGET = 0.35
"""Seconds of training in one run of the page, out of the `TICK` between two."""
RATES = (1, 10)
HUES = (HEAD_HUES[0], HEAD_HUES[1])
NAMES = {"right": "right", "wrong": "with bug"}
CHARTS = {
    "loss": Curves("Training loss", NAMES, HUES, "nats per token"),
    "tokens": Curves("Right on unseen inputs", NAMES, HUES, "tokens", ".1%", share=True),
    "gradient": Curves("Length of the gradient", NAMES, HUES, "‖g‖ before clipping", ".3g", can_log=True),
}


def training_panel(view: View, bug: Bug) -> dict[str, str]:
    """The button, the progress and the curves; returns what the link keeps."""
    seed("rate", RATES, RATES[bug.name == "no-clipping"], key=_rate_key(bug))
    seed("steps", STEPS, STEPS[0], key="bug_steps")
    look: dict[str, Any] = {
        "required": True,
        "persist_state": "session",
        "label_visibility": "collapsed",
        "width": "content",
    }
    job: Job[Lesson] | None = state().lessons.get(_about(view, bug))
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="bug_train_bar"):
        st.button(
            "Train both",
            type="primary",
            icon=":material/play_arrow:",
            key="bug_train",
            on_click=_start,
            args=(view, bug),
            disabled=job is not None and job.is_running,
        )
        st.segmented_control(
            "Steps",
            STEPS,
            format_func="{} steps".format,
            key="bug_steps",
            **look,
        )
        st.segmented_control(
            "Learning rate",
            RATES,
            format_func={1: "usual rate", 10: "ten times that"}.__getitem__,
            key=_rate_key(bug),
            **look,
        )
        if job is not None and job.is_running:
            job.advance(BUDGET)
        if job is not None and job.latest is not None:
            st.progress(job.latest.step / job.latest.steps, f"step {job.latest.step} of {job.latest.steps}", width=220)
            if job.is_running:
                st.button("Cancel", key="bug_train_cancel", on_click=job.cancel)
    if job is None or (job.latest is None and not job.problem):
        st.caption(
            "Two fresh models of this size, from the same first weights and on the same batches: one right, one with the bug."
        )
    elif job.problem or job.latest is None:
        st.info(escape_markdown(job.problem), icon=":material/error:")
    else:
        _show(view, bug, job.latest)
    return {"rate": str(st.session_state[_rate_key(bug)]), "steps": str(st.session_state["bug_steps"])}


def _rate_key(bug: Bug) -> str:
    """Without clipping, ten times the usual rate is the usual one: at that rate gradients are long."""
    return "bug_rate_unclipped" if bug.name == "no-clipping" else "bug_rate"


def lesson_of(view: View, bug: Bug) -> Lesson | None:
    """What has been trained of this model and bug so far."""
    job = state().lessons.get(_about(view, bug))
    return None if job is None else job.latest


def is_training() -> bool:
    return any(job.is_running for job in state().lessons.values())


def tick() -> float | None:
    """How often the page runs again by itself: only while something is trained."""
    return TICK if is_training() else None


def _about(view: View, bug: Bug) -> str:
    """What a job is known by."""
    rate, steps = st.session_state.get(_rate_key(bug), RATES[0]), st.session_state.get("bug_steps", STEPS[0])
    return f"{view.model}|{bug.name}|{rate}|{steps}"


def _start(view: View, bug: Bug) -> None:
    """Begin anew; whatever else is being trained for this visitor ends, and of what was, the last few are kept."""
    rate, steps = st.session_state[_rate_key(bug)], st.session_state["bug_steps"]
    jobs = state().lessons
    for job in jobs.values():
        job.cancel()
    about = _about(view, bug)
    jobs.pop(about, None)
    while len(jobs) >= MOST_KEPT:
        jobs.pop(next(iter(jobs)))
    jobs[about] = Job(lesson(lab_preset(view, rate, steps), bug, steps), about)


def _show(view: View, bug: Bug, latest: Lesson) -> None:
    table = pd.DataFrame(latest.rows)
    for index, (place, (what, curves)) in enumerate(zip(st.columns(3, gap="medium"), CHARTS.items(), strict=True)):
        frame = pd.DataFrame({side: table.get(f"{what}_{side}", math.nan) for side in NAMES}).assign(step=table["step"])
        with place:
            st.markdown(f"**{curves.title}**")
            chart = curve_chart(frame, curves, steps=latest.steps, dark=is_dark(), log=what == "gradient", height=260)
            st.altair_chart(chart, width="stretch", key=f"bug_curve_{index}")
    if latest.problem:
        st.info(f"With the bug: {escape_markdown(latest.problem)}", icon=":material/error:")
    preset = lab_preset(view, st.session_state[_rate_key(bug)], st.session_state["bug_steps"])
    code_and_data(lesson_code(view, bug, preset), table, "training", "bug-lab")
