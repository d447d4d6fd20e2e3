"""“Who adds what”: one output's logit as the sum of everything that was added to the stream."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from pages.residual.notes import parts_notes
from pages.shared import resources
from pages.shared.ask import choose, seed
from pages.shared.layout import caption, is_dark
from pages.shared.link import chose
from pages.shared.literal import literal
from pages.shared.notebook import footer, heading, heads_from_1, recording
from pages.shared.position_window import is_judged
from pages.shared.view import ORIGINAL, View
from xformer.analysis.attribution import attribution, strongest
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.viz.residual import attribution_chart

MOST = 12
"""So many parts have bars of their own."""
GOALS = {"logit": "its logit", "lead": "its lead"}
_IDENTITY = {
    "post": "This model normalises after every sum, so a part passes every later norm on its way out. Each norm is taken "
    "as linear with the standard deviation frozen at its value in this run; then the parts sum to the logit exactly.",
    "pre": "Only the last norm stands between the stream and the logit. With its standard deviation frozen at its value in "
    "this run it is linear, and the parts sum to the logit exactly.",
    "none": "No norm stands between the stream and the logit, so the parts simply sum to it.",
}


def attribution_panel(view: View, runs: Mapping[str, Reading]) -> None:
    """Ask for an output, draw the parts of every run, and say who adds the most."""
    heading("Who adds what to one output")
    position, goal = _ask_output(view)
    label = view.task.vocabulary.labels
    found = {name: _attribution(*view.key(name), position, goal) for name in runs}
    names = {token for _, _, token, _ in found.values()}
    what = "logit" if goal == "logit" else "lead"
    target = f"the {what} of {label[names.pop()]}" if len(names) == 1 else f"the {what} of the {_meant(view)} token"
    shown = strongest({name: parts for name, (parts, *_) in found.items()}, MOST)
    chart = attribution_chart(shown, target, dark=is_dark())
    st.altair_chart(chart, theme="streamlit", width="stretch", key="attribution")
    for name, (parts, figure, token, rival) in found.items():
        of = f"logit of {literal(label[token])}" + (f" − logit of {literal(label[rival])}" if goal == "lead" else "")
        run = "" if len(found) == 1 else "Outlined, the original: " if name == ORIGINAL else f"Filled, {name}: "
        total = parts["contribution"].sum()
        caption(
            f"{run}{of} = {figure:.4f} in the model; the parts sum to {total:.4f} "
            f"(difference {abs(total - figure):.0e}, the rounding of the run)."
        )
    n_parts = max(len(parts) for parts, *_ in found.values())
    few = (
        f" Of {n_parts} parts the {MOST} largest have a bar of their own; the CSV has them all."
        if n_parts > MOST + 1
        else ""
    )
    caption(
        _IDENTITY[view.checkpoint.config.norm]
        + f" A head’s part is its z·W_O; what moved **which** way it looks is not in it.{few}"
    )
    table = pd.concat([frame.assign(run=name) for name, (frame, *_) in found.items()])
    footer(view, _code(view, runs, found, position, goal, target), heads_from_1(table, 1), "attribution")
    parts_notes(found[view.shown][0], position)


def _ask_output(view: View) -> tuple[int, str]:
    """Which output is explained, and what of it: its position and one of `GOALS`."""
    run = view.original()
    labels = run.example.labels[0].tolist()
    positions = [index for index, token in enumerate(labels) if token != IGNORED]
    if view.task.rule.is_open_ended and not view.is_pair:
        positions.append(len(labels) - 1)  # what comes after the last character nobody knows; the model says something
    seed("pos", positions, positions[0], key="residual_pos", called="position")
    reads, token = view.reads(run, "decoder"), view.task.vocabulary.labels
    verb = "has to say" if is_judged(view) else "really followed by" if view.task.rule.is_open_ended else "says"

    def told(at: int) -> str:
        said = explained(run, at)
        known = labels[at] != IGNORED
        return f"{at}: reads {reads[at]}, {verb if known else 'says'} {token[said]}"

    where, what = st.columns([3, 2])
    with where:
        position = st.select_slider(
            "Output at position", positions, format_func=told, key="residual_pos", persist_state="session"
        )
        chose("pos", str(position))
    with what:
        goal = choose(
            "goal",
            GOALS,
            "logit",
            f"Explain the {_meant(view)} token’s …",
            key="residual_goal",
            help="The lead is its logit less that of the strongest other token. "
            "A logit alone may rise together with all the others; the lead is what makes a token win.",
        )
    return position, goal


def _meant(view: View) -> str:
    """Which token is explained, in a word."""
    return "right" if is_judged(view) else "next" if view.task.rule.is_open_ended else "predicted"


def explained(run: Reading, position: int) -> int:
    """The token at an output whose logit is explained: what should, or really does, stand there; else the likeliest."""
    token = int(run.example.labels[0, position])
    return token if token != IGNORED else int(run.trace.logits[0, position].argmax())


def _code(
    view: View,
    runs: Mapping[str, Reading],
    found: Mapping[str, tuple[pd.DataFrame, float, int, int]],
    position: int,
    goal: str,
    target: str,
) -> list[str]:
    lines = [
        "from xformer.analysis.attribution import attribution, strongest",
        "from xformer.viz.residual import attribution_chart",
        "parts = {}",
    ]
    for name, (_, _, token, rival) in found.items():
        trace = recording(runs[name]) if view.is_changed and name == ORIGINAL else "trace"
        against = f", against={rival}" if goal == "lead" else ""
        lines.append(f"parts[{name!r}] = attribution(checkpoint.model, {trace}, {position}, {token}{against})")
    return [*lines, f"attribution_chart(strongest(parts, {MOST}), {target!r}, dark={is_dark()})"]


@st.cache_data(max_entries=256, show_spinner=False)
def _attribution(
    model: str, source: tuple[int, ...], mask: str, changes: str, position: int, goal: str
) -> tuple[pd.DataFrame, float, int, int]:
    """The parts, the model's own figure, the token that is explained and the strongest other one."""
    run = resources.run(model, source, mask, changes)
    logits = run.trace.logits[0, position]  # [vocab]
    labelled = int(run.example.labels[0, position]) != IGNORED
    # Where nobody knows the token, a changed run is asked about the one that the original says.
    token = explained(run if labelled else resources.run(model, source), position)
    others = logits.clone()
    others[token] = float("-inf")
    rival = int(others.argmax())
    against = rival if goal == "lead" else None
    parts = attribution(resources.checkpoint(model).model, run.trace, position, token, against)
    figure = logits[token] - (logits[rival] if goal == "lead" else 0.0)
    return parts, figure.item(), token, rival
