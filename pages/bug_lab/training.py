"""Training twice from the same first weights on the same batches, once with the bug: a little in each run of the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.bug_lab.choice import state
from pages.shared.background_job import TICK, Job
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.models import card_of_model, shown_path
from pages.shared.picture import footer, shown
from pages.shared.view import View
from pages.shared.widgets import seed
from xformer import viz
from xformer.bugs import Bug
from xformer.bugs.lesson import Lesson, lab_preset, lesson
from xformer.viz.training_curves import BUG_LESSON_CURVES

STEPS = (200, 800)
MOST_KEPT = 6
"""Lessons of one visit."""
BUDGET = 0.35
"""Seconds of training in one run of the page, out of the `TICK` between two."""
RATES = (1, 10)


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
    preset = lab_preset(view.config, view.own.task.config, steps, **_rate_and_batch(view, rate))
    jobs[about] = Job(lesson(preset, bug, steps), about)


def _rate_and_batch(view: View, rate: int) -> dict[str, Any]:
    """Those of the model's own training, in small batches."""
    recipe = card_of_model(view.model).get("train", {})
    return {"peak_lr": recipe.get("peak_lr", 3e-3) * rate, "batch_size": min(32, recipe.get("batch_size", 32))}


def _show(view: View, bug: Bug, latest: Lesson) -> None:
    how = {"steps": latest.steps, **_rate_and_batch(view, st.session_state[_rate_key(bug)])}
    how |= {} if latest.is_final else {"until": latest.step}
    said = ", ".join(f"{name}={value!r}" for name, value in how.items())
    latest = replace(latest, recipe=f"train_both({shown_path(view.model)!r}, {bug.name!r}, {said})")
    calls = [Call(viz.lesson_curves, (latest,), {"what": what}) for what in BUG_LESSON_CURVES]
    for place, call, curves in zip(st.columns(3, gap="medium"), calls, BUG_LESSON_CURVES.values(), strict=True):
        with place:
            st.markdown(f"**{curves.title}**")
            shown(view, call, f"bug_{call.options['what']}")
    if latest.problem:
        st.info(f"With the bug: {escape_markdown(latest.problem)}", icon=":material/error:")
    remark = ["from xformer.bugs.lesson import train_both"]
    footer(view, "training", calls, pd.DataFrame(latest.rows), remark=remark)
