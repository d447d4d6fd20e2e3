"""“How many of them fire”: the shares of each layer's neurons that fire and that are dead, here and over a sample."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis.survey import Survey, activity, activity_of, survey
from xformer.viz.attention import layer_title
from xformer.viz.feed_forward import activity_chart

SAMPLE, SEED, BEST = 2000, 0, 8
MOST_TOKENS = 64_000
"""Of a sample: long inputs are fewer."""


@st.cache_resource(max_entries=16, show_spinner=False)
def surveyed(model: str) -> Survey:
    """What the neurons of a model did over the sample; it takes a moment when a model is met for the first time."""
    checkpoint = resources.checkpoint(model)
    assert checkpoint.task is not None
    task = checkpoint.task
    n = min(SAMPLE, MOST_TOKENS // max(task.longest))
    return survey(checkpoint.model, task, n, SEED, best=BEST)


def activity_panel(view: View, runs: Mapping[str, Run], paths: list[str], found: Survey) -> pd.DataFrame:
    """Draw the shares of all layers; returns those of the sample."""
    heading("How many of them fire")
    over = f"{found.n_inputs:,} inputs"
    frames = [
        activity_of(run.trace, paths, "this input" if len(runs) == 1 else f"this input, {name}")
        for name, run in runs.items()
    ]
    frames.append(activity(found.fired, found.n_positions, over))
    table = pd.concat(frames)
    table = table.sort_values("layer", key=lambda column: column.map(paths.index), kind="stable")
    titles = {path: layer_title(path, is_pair=view.is_pair) for path in paths}
    st.altair_chart(activity_chart(table, titles, dark=is_dark()), theme="streamlit", width="stretch", key="activity")
    tokens = next(iter(found.n_positions.values()))
    st.caption(
        f"A neuron fires where its activation is above 0. {over} sampled from the task (seed {found.seed}; "
        f"{tokens:,} tokens in the first layer, the model as trained); "
        "dead means dead on those inputs."
    )
    lines = [
        "from xformer.analysis.survey import activity, survey",
        "from xformer.viz.feed_forward import activity_chart",
        f"found = survey(checkpoint.model, checkpoint.task, {found.n_inputs}, {found.seed})",
        'frame = activity(found.fired, found.n_positions, "the sample")',
        f"activity_chart(frame, {titles}, dark=False)",
    ]
    footer(view, lines, table, "activity")
    return frames[-1]
