"""“How long the stream is, and how much each step adds”: two heatmaps of lengths by step and position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.layout import WIDE, chart_spec, is_dark, places
from pages.shared.notebook import footer, heading
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis.stream import norms
from xformer.viz.residual import norm_chart

_TITLES = {"stream": "The stream", "added": "What each step adds"}


def norms_panel(view: View, runs: Mapping[str, Run]) -> None:
    """Draw the lengths of every run, on the same scales."""
    heading("How long the stream is, and how much each step adds")
    frames = {name: _norms(*view.key(name)) for name in runs}
    everything = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    limits = everything.groupby("what")["length"].max()
    for index, (name, run) in enumerate(runs.items()):
        suffix = "" if len(runs) == 1 else f", {name}"
        n = frames[name]["position"].nunique()
        for place, (what, title) in zip(places(2, n), _TITLES.items(), strict=True):
            beside = n <= WIDE
            limit = float(limits[what])
            look: dict[str, Any] = {
                "dark": is_dark(),
                "title": title + suffix,
                "named": what == "stream" or not beside,
                "legend": not beside,
            }
            draw = partial(norm_chart, frames[name], what, view.reads(run, "decoder"), limit, **look)
            spec = chart_spec((what, *view.key(name), limit, *look.values()), draw)
            place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"norm_{what}_{index}")
    if view.checkpoint.config.norm == "post":
        st.caption("Each norm of this model resets the length of the stream; what a step adds is measured before that.")
    lines = [
        "from xformer.analysis.stream import norms",
        "from xformer.viz.residual import norm_chart",
        f"reads = {view.reads(runs[view.shown], 'decoder')}",
        "frame = norms(checkpoint.model, trace)",
        'norm_chart(frame, "added", reads, frame["length"].max(), dark=False)',
    ]
    footer(view, lines, everything, "norms")


@st.cache_data(max_entries=64, show_spinner=False)
def _norms(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    return norms(resources.checkpoint(model).model, resources.run(model, source, mask, changes).trace)
