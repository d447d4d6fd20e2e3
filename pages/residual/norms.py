"""“How long the stream is”: a heatmap of its lengths, or of the lengths of what each step adds, by step and position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.layout import caption, chart_spec, is_dark, run_title, what_to_notice
from pages.shared.notebook import footer, heading, recording
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import ORIGINAL, View
from xformer.analysis.stream import norms
from xformer.reading import Reading
from xformer.viz.residual import MOST_POINTS, norm_chart

_WHAT = {"stream": "the stream", "added": "what each step adds"}


def norms_panel(view: View, runs: Mapping[str, Reading]) -> None:
    """Draw the lengths of every run, on one scale."""
    heading("How long the stream is")
    frames = {name: _norms(*view.key(name)) for name in runs}
    positions = sorted(frames[ORIGINAL]["position"].unique().tolist())
    what = choose("length", _WHAT, "stream", "The length of …", key="residual_length")
    shown = ask_window(positions, "residual_from")
    everything = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    limit = float(everything.loc[everything["what"] == what, "length"].max())
    for index, (name, run) in enumerate(runs.items()):
        look: dict[str, Any] = {"dark": is_dark(), "title": run_title(name) if len(runs) > 1 else ""}
        part = frames[name][frames[name]["position"].isin(shown)]
        draw = partial(norm_chart, part, what, view.reads(run, "decoder"), limit, **look)
        spec = chart_spec((what, *view.key(name), limit, *shown, *look.values()), draw)
        st.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"norm_{index}")
    caption(_caption(view, what, frames[view.shown], positions, shown))
    footer(view, _code(view, runs, what, limit, shown if len(shown) < len(positions) else []), everything, "norms")
    if notes := norm_notes(frames[view.shown], what, view.checkpoint.config.norm):
        what_to_notice(notes)


def _caption(view: View, what: str, frame: pd.DataFrame, positions: list[int], shown: list[int]) -> str:
    which = "the decoder’s stream" if view.is_pair else "the residual stream"
    said = (
        f"‖x‖, the length of {which} after each step."
        if what == "stream"
        else "‖f(x)‖, the length of what a step adds."
    )
    if view.checkpoint.config.norm == "post":
        said += " Each norm of this model resets the length of the stream" + (
            ", and what a step adds is measured before that." if what == "added" else "."
        )
    n_points = len(set(frame["depth"]))
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    return said + thin + shown_of(positions, shown)


def norm_notes(frame: pd.DataFrame, what: str, norm: str) -> list[str]:
    """How the average length goes from the first step to the last, or which step adds most; nothing where that is no news."""
    means = frame.loc[frame["what"] == what].groupby(["depth", "point"])["length"].mean().reset_index()
    if what == "stream":
        first, last = means.iloc[0]["length"], means.iloc[-1]["length"]
        if norm == "post" or not first or 0.8 < last / first < 1.25:
            return []
        return [
            f"On average over the positions the stream {'grows' if last > first else 'shrinks'} from {first:.1f} to "
            f"{last:.1f}: what a later step adds has to be that much {'longer' if last > first else 'shorter'} to turn it "
            "by the same angle."
        ]
    steps = means.iloc[1:]  # the first is the embedding itself
    most, least = steps.loc[steps["length"].idxmax()], steps.loc[steps["length"].idxmin()]
    if most["length"] < 1.25 * least["length"]:
        return []
    return [
        f"On average over the positions **{most['point']}** adds the most ({most['length']:.1f}) and **{least['point']}** the "
        f"least ({least['length']:.1f}). Long is not important: what counts is how it lies to what is read out."
    ]


def _code(view: View, runs: Mapping[str, Reading], what: str, limit: float, shown: list[int]) -> list[str]:
    """The lines for all charts that are shown; `shown` are the positions of a window."""
    window = f'frame = frame[frame["position"].between({shown[0]}, {shown[-1]})]' if shown else ""
    lines = ["from xformer.analysis.stream import norms", "from xformer.viz.residual import norm_chart"]
    charts = []
    for name, run in runs.items():
        is_own = view.is_changed and name == ORIGINAL
        trace = recording(run) if is_own else "trace"
        title = f", title={run_title(name)!r}" if len(runs) > 1 else ""
        reads = view.reads(run, "decoder")
        lines += [f"frame = norms(checkpoint.model, {trace})", *([window] if window else [])]
        charts.append(f"chart_{len(charts)}")
        lines.append(f'{charts[-1]} = norm_chart(frame, "{what}", {reads!r}, {limit!r}, dark={is_dark()}{title})')
    return [*lines, charts[0] if len(charts) == 1 else f"[{', '.join(charts)}]"]


@st.cache_data(max_entries=64, show_spinner=False)
def _norms(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    return norms(resources.checkpoint(model).model, resources.run(model, source, mask, changes).trace)
