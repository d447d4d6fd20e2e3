"""The curves of the chosen runs over each other: which figure, against what, on which scale, how smooth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from pages.runs.table import MAX_DRAWN, runs_state
from pages.shared.layout import chart_spec, is_dark
from pages.shared.link_widgets import seed
from xformer.training.entry import Entry
from xformer.training.latest_metrics import has_no_answer
from xformer.training.metric_files import flat
from xformer.viz.training_curves import curves, curves_chart, run_colour

METRICS = {
    "held_out_exact_match": "exact match",
    "held_out_loss": "held-out loss",
    "loss": "training loss",
    "held_out_token_accuracy": "token accuracy",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens per second",
    "best_head_score": "best head’s score",
}
FIRST = ("held_out_exact_match", "held_out_loss")
SMOOTHING = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
SCALES = {"linear": "linear", "log": "log"}
AXES = {"step": "steps", "seconds": "seconds"}


def labels(entries: Sequence[Entry]) -> dict[str, str]:
    """What each run is called in a picture: its name, with the start of its id where two have the same."""
    names = [entry.name for entry in entries]
    return {
        entry.id: entry.name if names.count(entry.name) == 1 else f"{entry.name} · {entry.id[:4]}" for entry in entries
    }


def curves_panel(entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Draw the curves of the chosen runs; what the link must say to draw them again."""
    entries = entries[:MAX_DRAWN]
    metrics = _ask_metrics()
    seed("x", list(AXES), "step", key="runs_x", called="horizontal axis")
    seed("scale", list(SCALES), "log", key="runs_scale", called="scale")
    seed("smooth", SMOOTHING, 0.0, key="runs_smooth", called="smoothing")
    controls = st.container(horizontal=True, gap="medium", vertical_alignment="bottom")
    x = controls.segmented_control(
        "Against", list(AXES), format_func=AXES.__getitem__, key="runs_x", persist_state="session", required=True
    )
    scale = controls.segmented_control(
        "Scale",
        list(SCALES),
        key="runs_scale",
        persist_state="session",
        required=True,
        help="Of losses, norms and rates; shares are always drawn from 0 to 1.",
    )
    assert x is not None  # this one and the other are required, and set before they are drawn
    assert scale is not None
    smoothing = controls.select_slider(
        "Smoothing",
        SMOOTHING,
        key="runs_smooth",
        persist_state="session",
        width=150,
        help="How much of the average before each new report keeps. The raw curve stays behind, faint.",
    )
    names, slots, dark = labels(entries), runs_state().colour_slots(), is_dark()
    colours = {names[entry.id]: run_colour(slots.get(entry.id, 0), dark) for entry in entries}
    found = {names[entry.id]: [_drawn(entry, flat(row)) for row in rows[entry.id]] for entry in entries}
    state = tuple(
        (entry.id, names[entry.id], colours[names[entry.id]], len(rows[entry.id]), str(rows[entry.id][-1:]))
        for entry in entries
    )
    for metric in metrics:
        if not any(metric in row for points in found.values() for row in points):
            st.caption(f"No chosen run has reported its {METRICS[metric]} yet.")
            continue

        def draw(metric: str = metric) -> Any:
            frame = curves(found, metric, x=x, smoothing=smoothing)
            return curves_chart(frame, metric, METRICS[metric], colours, x=x, log=scale == "log")

        spec = chart_spec((state, metric, x, scale, smoothing), draw)
        wide = st.container(key=f"wide_runs_{metric}")
        wide.vega_lite_chart(spec, theme="streamlit", key=f"runs_chart_{metric}", width="stretch")
    without = [names[entry.id] for entry in entries if not rows[entry.id] and entry.sweep is None]
    if without:
        st.caption(f"Without a curve: {len(without)} of the chosen runs, which have reported nothing yet.")
    return {
        "curves": ",".join(metrics),
        "x": x,
        "scale": scale,
        "smooth": str(smoothing),
    }


def _drawn(entry: Entry, row: dict[str, Any]) -> dict[str, Any]:
    """A report without the exact match of a text, which is none."""
    return {name: value for name, value in row.items() if name != FIRST[0]} if has_no_answer(entry) else row


def _ask_metrics() -> list[str]:
    if "runs_metrics" not in st.session_state:
        asked = [name for name in st.query_params.get("curves", ",".join(FIRST)).split(",") if name in METRICS]
        st.session_state["runs_metrics"] = asked or list(FIRST)
    chosen = st.multiselect(
        "Curves",
        list(METRICS),
        format_func=METRICS.__getitem__,
        key="runs_metrics",
        persist_state="session",
        placeholder="choose what to see",
        help="Each gets a picture of its own. Click a line to bring its run to the front, double-click to let go.",
    )
    return [name for name in METRICS if name in chosen]  # in one order, however they were clicked
