"""“Who adds what to the right answer”: one output's logit as the sum of everything that was added to the stream."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.ask import choose, seed
from pages.shared.layout import is_dark
from pages.shared.literal import literal
from pages.shared.notebook import footer, heading
from pages.shared.resources import Run
from pages.shared.view import ORIGINAL, View
from xformer.analysis.attribution import attribution
from xformer.tasks.batch import IGNORED
from xformer.viz.residual import attribution_chart

LOGIT, LEAD = "the right logit", "its lead"
GOALS = {"logit": LOGIT, "lead": LEAD}
_IDENTITY = {
    "post": "This model normalises after every sum, so a part passes every later norm on its way out. Each norm is taken "
    "as linear with the standard deviation frozen at its value in this run; then the parts sum to the logit exactly.",
    "pre": "Only the last norm stands between the stream and the logit. With its standard deviation frozen at its value in "
    "this run it is linear, and the parts sum to the logit exactly.",
    "none": "No norm stands between the stream and the logit, so the parts simply sum to it.",
}


def ask_output(view: View) -> tuple[int, str]:
    """Under the panel's heading, which output is explained, and what of it: its position and one of `GOALS`."""
    run = view.original()
    labels = run.example.labels[0].tolist()
    positions = [index for index, label in enumerate(labels) if label != IGNORED]
    seed("pos", positions, positions[0], key="residual_pos", called="position")
    seed("goal", list(GOALS), "logit", key="residual_goal", called="view")
    heading("Who adds what to the right answer")
    reads, token = view.reads(run, "decoder"), view.task.vocabulary.labels
    where, what = st.columns([3, 2])
    with where:
        position = st.select_slider(
            "Output at position",
            positions,
            format_func=lambda at: f"{at}: reads {reads[at]}, has to say {token[labels[at]]}",
            key="residual_pos",
            persist_state="session",
        )
    with what:
        goal = choose(
            "goal",
            GOALS,
            "logit",
            "Explain",
            key="residual_goal",
            help="The lead is the right logit less that of the strongest other token. "
            "A logit alone may rise together with all the others; the lead is what makes the token win.",
        )
    return position, goal


def attribution_panel(view: View, runs: Mapping[str, Run], position: int, goal: str) -> pd.DataFrame:
    """Draw the parts of every run; returns those of the run that is shown."""
    label = view.task.vocabulary.labels
    found = {name: _attribution(*view.key(name), position, goal) for name in runs}
    names = {token for _, _, token, _ in found.values()}
    target = f"the logit of {label[names.pop()]}" if len(names) == 1 else LOGIT
    target = target if goal == "logit" else f"the lead of {target.removeprefix('the logit of ')}"
    chart = attribution_chart({name: parts for name, (parts, *_) in found.items()}, target, dark=is_dark())
    st.altair_chart(chart, theme="streamlit", width="stretch", key="attribution")
    for name, (parts, figure, token, rival) in found.items():
        of = f"logit of {literal(label[token])}" + (f" − logit of {literal(label[rival])}" if goal == "lead" else "")
        run = "" if len(found) == 1 else "Outlined, the original: " if name == ORIGINAL else f"Filled, {name}: "
        st.caption(
            f"{run}{of} = {figure:.4f} in the model; the parts sum to {parts['contribution'].sum():.4f} "
            f"(difference {abs(parts['contribution'].sum() - figure):.0e}, the rounding of the run)."
        )
    st.caption(
        _IDENTITY[view.checkpoint.config.norm]
        + " A head’s part is its z·W_O; what moved **which** way it looks is not in it."
    )
    parts, _, token, rival = found[view.shown]
    against = f", against={rival}" if goal == "lead" else ""
    lines = [
        "from xformer.analysis.attribution import attribution",
        "from xformer.viz.residual import attribution_chart",
        f"parts = attribution(checkpoint.model, trace, {position}, {token}{against})",
        f'attribution_chart({{"run": parts}}, "{target}", dark=False)',
    ]
    footer(view, lines, pd.concat([frame.assign(run=name) for name, (frame, *_) in found.items()]), "attribution")
    return parts


@st.cache_data(max_entries=256, show_spinner=False)
def _attribution(
    model: str, source: tuple[int, ...], mask: str, changes: str, position: int, goal: str
) -> tuple[pd.DataFrame, float, int, int]:
    """The parts, the model's own figure, the right token and the strongest other one."""
    run = resources.run(model, source, mask, changes)
    logits = run.trace.logits[0, position]  # [vocab]
    token = int(run.example.labels[0, position])
    others = logits.clone()
    others[token] = float("-inf")
    rival = int(others.argmax())
    against = rival if goal == "lead" else None
    parts = attribution(resources.checkpoint(model).model, run.trace, position, token, against)
    figure = logits[token] - (logits[rival] if goal == "lead" else 0.0)
    return parts, figure.item(), token, rival
