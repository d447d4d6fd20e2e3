"""“How many of them fire”: the shares of each layer's neurons that fire and that are dead, here and over a sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.ask import choose
from pages.shared.layout import is_dark, what_to_notice
from pages.shared.notebook import footer, heading, recording
from pages.shared.view import ORIGINAL, View
from xformer.analysis.survey import Survey, activity, activity_of, feed_forward_layers, fitting, surveying
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.viz.feed_forward import activity_chart
from xformer.words import percent

OVER = {"sample": "many inputs", "input": "this input"}
SEED, BEST = 0, 8
STOPPED = "ff_stopped"
"""The models whose survey this visitor has stopped."""


@dataclass
class _Work:
    """A survey under way, which all visitors who wait for it drive on together."""

    steps: Iterator[Survey]
    lock: threading.Lock = field(default_factory=threading.Lock)
    latest: Survey | None = None
    is_done: bool = False

    def step(self) -> Survey:
        """One batch more, if there is one; what is known by then."""
        with self.lock:
            found = None if self.is_done else next(self.steps, None)
            self.is_done = found is None or found.n_inputs == found.n_asked
            self.latest = found or self.latest
            assert self.latest is not None
            return self.latest


@st.cache_resource(max_entries=16, show_spinner=False)
def _work(model: str) -> _Work:
    checkpoint = resources.checkpoint(model)
    assert checkpoint.task is not None
    n = fitting(checkpoint.model, checkpoint.task)
    return _Work(surveying(checkpoint.model, checkpoint.task, n, SEED, best=BEST))


def surveyed(view: View) -> Survey | None:
    """What the neurons of a model did over the sample. The first time it takes a moment, with a bar and a way to stop it.

    Whatever a visitor clicks meanwhile ends the run of this screen; what was found so far is kept, and the next goes on. None,
    and it is said why, where there are no inputs to be had.
    """
    if view.task.rule.missing:
        st.info(f"No inputs can be sampled. {view.task.rule.missing}", icon=":material/info:")
        return None
    work, stopped = _work(view.model), st.session_state.setdefault(STOPPED, set())
    place = st.empty()
    found = work.latest or work.step()
    if view.model in stopped and not work.is_done:
        with place.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"Stopped after {found.n_inputs:,} of {found.n_asked:,} inputs.", width="content")
            st.button("Go on", on_click=stopped.discard, args=(view.model,), key="survey_on", type="tertiary")
        return found
    bar = None
    while not work.is_done:
        said = f"Running the model on sampled inputs: {found.n_inputs:,} of {found.n_asked:,}"
        if bar is None:
            with place.container(horizontal=True, vertical_alignment="center"):
                bar = st.progress(found.n_inputs / found.n_asked, said)
                st.button("Stop", on_click=stopped.add, args=(view.model,), key="survey_stop", type="tertiary")
        bar.progress(found.n_inputs / found.n_asked, said)
        found = work.step()
    place.empty()
    return found


def activity_panel(view: View, runs: Mapping[str, Reading], path: str) -> None:
    """Draw the shares of all layers, on this input or over the sample, and say how it stands with the chosen layer."""
    heading("How many of them fire")
    paths = list(feed_forward_layers(view.checkpoint.model))
    over = choose("over", OVER, "sample", "Counted over", key="ff_over")
    picture, below = st.container(), st.container()
    lines = ["from xformer.analysis.survey import activity, activity_of, survey", "import pandas as pd"]
    if over == "sample":
        with below:
            found = surveyed(view)
        if found is None:
            return
        table = activity(found.fired, found.n_positions, f"{found.n_inputs:,} inputs")
        first = "" if found.n_inputs == found.n_asked else f", first={found.n_inputs}"
        lines += [
            f"found = survey(checkpoint.model, checkpoint.task, {found.n_asked}, {found.seed}{first})",
            f'frame = activity(found.fired, found.n_positions, "{found.n_inputs:,} inputs")',
        ]
        tokens = next(iter(found.n_positions.values()))
        which = "test images" if view.task.rule.is_image else "inputs sampled from the task"
        said = f"{found.n_inputs:,} {which} (seed {found.seed}; {tokens:,} tokens in the first layer), the model as trained"
    else:
        names = {name: "this input" if len(runs) == 1 else f"this input, {name}" for name in runs}
        table = pd.concat([activity_of(run.trace, paths, names[name]) for name, run in runs.items()])
        frames = [
            f"activity_of({recording(run) if view.is_changed and name == ORIGINAL else 'trace'}, {paths}, {names[name]!r})"
            for name, run in runs.items()
        ]
        lines.append(f"frame = pd.concat([{', '.join(frames)}])")
        said = "this input alone"
    table = table.sort_values("layer", key=lambda column: column.map(paths.index), kind="stable")
    lines.append(f'frame = frame.sort_values("layer", key=lambda column: column.map({paths}.index), kind="stable")')
    titles = {path: layer_title(path, is_pair=view.is_pair) for path in paths}
    with picture:
        chart = activity_chart(table, titles, dark=is_dark())
        st.altair_chart(chart, theme="streamlit", width="stretch", key="activity")
        st.caption(f"A neuron fires where its activation is above 0, and is dead where it never does: on {said}.")
    lines = [*lines, "from xformer.viz.feed_forward import activity_chart"]
    footer(view, [*lines, f"activity_chart(frame, {titles}, dark={is_dark()})"], table, "activity")
    what_to_notice(activity_notes(table[table["layer"] == path].iloc[-1].to_dict(), titles[path]))


def activity_notes(row: dict[str, Any], title: str) -> list[str]:
    """How one layer stands, from its row of an `activity` frame."""
    dead = "none" if row["dead"] == 0 else f"**{row['dead']:,}**"
    verb = "is" if row["dead"] <= 1 else "are"
    return [
        f"In {title}, {dead} of {row['neurons']:,} neurons {verb} dead on {row['over']}, "
        f"and at an average token **{percent(row['share_at_once'], 0)}** fire at once."
    ]
