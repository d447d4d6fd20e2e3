"""Training two models from the same initial weights on the same batches, one of them with the bug."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.bug_lab.choice import state
from pages.shared.background_job import Job
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.models import card_of_model, shown_path
from pages.shared.picture import footer, shown
from pages.shared.view import View
from pages.shared.widgets import seed
from xformer import viz
from xformer.bugs import Bug
from xformer.bugs.lab import Lesson, lab_preset, lesson
from xformer.viz.training_curves import BUG_LESSON_CURVES

STEPS = (200, 800)
MOST_KEPT = 6
"""Trainings that are kept in a visit."""
BUDGET = 0.35
"""Seconds of training in one run of the page."""
RATES = {1: "usual rate", 10: "ten times that"}


def training_panel(view: View, bug: Bug) -> dict[str, str]:
    """Draw the button, the progress and the curves; returns what the link keeps."""
    rate_key = _rate_key(bug)
    seed("rate", list(RATES), 10 if bug.name == "no-clipping" else 1, key=rate_key)
    seed("steps", STEPS, STEPS[0], key="bug_steps")
    look: dict[str, Any] = {"required": True, "persist_state": "session"}
    look |= {"label_visibility": "collapsed", "width": "content"}
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
        st.segmented_control("Steps", STEPS, format_func="{} steps".format, key="bug_steps", **look)
        st.segmented_control("Learning rate", list(RATES), format_func=RATES.__getitem__, key=rate_key, **look)
        if job is not None and job.is_running:
            job.advance(BUDGET)
        if job is not None and job.latest is not None:
            st.progress(job.latest.step / job.latest.steps, f"step {job.latest.step} of {job.latest.steps}", width=220)
            if job.is_running:
                st.button("Cancel", key="bug_train_cancel", on_click=job.cancel)
    if job is None or (job.latest is None and not job.problem):
        st.caption(
            "Two new models of this size, with the same initial weights and the same batches: one right, one with the bug."
        )
    elif job.problem or job.latest is None:
        st.info(escape_markdown(job.problem), icon=":material/error:")
    else:
        _show(view, bug, job.latest)
    return {"rate": str(st.session_state[rate_key]), "steps": str(st.session_state["bug_steps"])}


def _rate_key(bug: Bug) -> str:
    """The key of the rate: without clipping it defaults to ten times the usual rate, at which gradients are long."""
    return "bug_rate_unclipped" if bug.name == "no-clipping" else "bug_rate"


def lesson_of(view: View, bug: Bug) -> Lesson | None:
    """The training of this model and bug so far."""
    job = state().lessons.get(_about(view, bug))
    return None if job is None else job.latest


def is_training() -> bool:
    return any(job.is_running for job in state().lessons.values())


def _about(view: View, bug: Bug) -> str:
    rate, steps = st.session_state.get(_rate_key(bug), 1), st.session_state.get("bug_steps", STEPS[0])
    return f"{view.model}|{bug.name}|{rate}|{steps}"


def _start(view: View, bug: Bug) -> None:
    """Start a training; any other of this visit is cancelled, and the last few are kept."""
    jobs, about, steps = state().lessons, _about(view, bug), st.session_state["bug_steps"]
    for job in jobs.values():
        job.cancel()
    jobs.pop(about, None)
    while len(jobs) >= MOST_KEPT:
        jobs.pop(next(iter(jobs)))
    preset = lab_preset(view.config, view.own.task.config, steps, **_recipe(view, bug))
    jobs[about] = Job(lesson(preset, bug, steps), about)


def _recipe(view: View, bug: Bug) -> dict[str, Any]:
    """Learning rate and batch size: those of the model’s training times the chosen rate, with small batches."""
    recipe, rate = card_of_model(view.model).get("train", {}), st.session_state[_rate_key(bug)]
    return {"peak_lr": recipe.get("peak_lr", 3e-3) * rate, "batch_size": min(32, recipe.get("batch_size", 32))}


def _show(view: View, bug: Bug, latest: Lesson) -> None:
    how = {"steps": latest.steps, **_recipe(view, bug)} | ({} if latest.is_final else {"until": latest.step})
    arguments = ", ".join(f"{name}={value!r}" for name, value in how.items())
    latest = replace(latest, recipe=f"train_both({shown_path(view.model)!r}, {bug.name!r}, {arguments})")
    calls = [Call(viz.lesson_curves, (latest,), {"what": what}) for what in BUG_LESSON_CURVES]
    for place, call, curves in zip(st.columns(3, gap="medium"), calls, BUG_LESSON_CURVES.values(), strict=True):
        with place:
            st.markdown(f"**{curves.title}**")
            shown(view, call, f"bug_{call.options['what']}")
    if latest.problem:
        st.info(f"With the bug: {escape_markdown(latest.problem)}", icon=":material/error:")
    footer(view, "training", calls, pd.DataFrame(latest.rows), remark=["from xformer.bugs.lab import train_both"])
