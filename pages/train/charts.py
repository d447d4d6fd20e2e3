"""The curves of a run: what the charts are given, and how they get to the browser without being drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import streamlit as st

from pages.components.training_player import resting
from pages.shared.call import Call
from pages.shared.figure_files import Figures, figure_files
from pages.shared.layout import chart_spec, is_dark
from pages.shared.notebook import csv, heads_from_1, html, menu
from pages.shared.script import script
from pages.train.film import Film, head_names
from pages.train.state import film_key
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_file
from xformer.viz.training_curves import (
    CURVES,
    Curves,
    curve_chart,
    domain_of,
    head_curves,
    head_frame,
    metric_data,
    with_marks,
)

HEIGHT, TALL = 172, 230
"""CSS pixels of a chart beside the picture and of one below it, its axes included."""
SCORE = "The share of a head’s attention that lies where this task needs it: 0 is none of it, 1 is all."
MOST_HEADS = 16
"""Up to so many heads each has a curve of its own, beyond that only the best one of each layer."""


def metric_chart(call: Call, *, switch: bool = False) -> Call:
    """Show a call of `viz.metric_curves`; `switch` adds one for a logarithmic axis. What comes back is the call it has made."""
    of, (frame,) = dict(call.options), call.readings
    curves = CURVES[of["what"]]
    with st.container(horizontal=True, vertical_alignment="center", key=f"head_{curves.axis}_{of['height']}"):
        st.markdown(f"**{curves.title}**", width="stretch")
        if switch:
            of["log"] = st.toggle("logarithmic", key="train_log", persist_state="session")
    data = metric_data(frame, of["what"], of["shown"], of["marks"])
    _show(data, curves, of["steps"], of["height"], of.get("log", False))
    return replace(call, options=of)


def head_panel(film: Film, task: Task, steps: int, shown: int | None, marks: Mapping[int, str]) -> None:
    """The scores of the heads on the probe, over the snapshots."""
    names = head_names(film)
    st.markdown(f"**Heads: {task.rule.score_name} score**", help=SCORE)
    if not names:
        curves = head_curves(f"Heads: {task.rule.score_name} score", {"best": "best head"}, [0])
        _show(
            pd.DataFrame({"step": pd.Series(dtype=float), "best": pd.Series(dtype=float)}), curves, steps, TALL, False
        )
        return
    table = film.table
    if len(names) > MOST_HEADS:
        table = table.loc[table.groupby(["step", "layer"])["score"].idxmax()].assign(head=0)
        titles = {layer.path: layer.title for layer in film.layers}
        names = {(path, 0): f"{titles[path]}, best head" for path in dict.fromkeys(table["layer"])}
        hues = list(range(len(names)))
    else:
        hues = [head for _, head in names]
        if len(dict.fromkeys(hues)) == 1:
            hues = list(range(len(names)))
    wide, columns = head_frame(table)
    curves = head_curves(
        f"Heads: {task.rule.score_name} score", {columns[pair]: name for pair, name in names.items()}, hues
    )
    _show(with_marks(wide, shown, marks.items()), curves, steps, TALL, False)


def code_and_files(
    entry: Entry,
    calls: Sequence[Call],
    film: Film,
    example: Example,
    step: int | None,
    files: tuple[Callable[[], str], Figures] | None,
) -> None:
    """The code of the curves and of the picture of the shown step, their numbers, and the player as figures and as a page."""
    (frame,) = calls[0].readings
    pictures = [call.written({id(frame): "frame"}) for call in calls]
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        "from xformer.viz.training_curves import metrics_frame",
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps what it trains',
        f'frame = metrics_frame(RunStore(runs).rows("{entry.id}"))',
    ]
    if step is not None:
        snapshot = snapshot_file(Path(entry.id), step).as_posix()
        lines.append(f'r = xformer.read(f"{{runs}}/{snapshot}", {list(example.source)})')
        head = "" if (chosen := resting(film_key(entry.id)).head) is None else f", head={chosen}"
        pictures.append(f"xformer.viz.film_still({{{step}: r}}{head}{', dark=True' if is_dark() else ''})")
    lines.append("[" + ",\n ".join(pictures) + "]")
    with menu("training"):
        st.code(script(lines), language="python", width=900)
        csv(frame, "metrics", entry.id, "Metrics as CSV")
        csv(lambda: heads_from_1(film.table), "heads", entry.id, "Head scores as CSV")
        if files is not None:
            with st.container(horizontal=True, gap="small"):
                figure_files(files[1], "training", entry.id)
                html(files[0], "training", entry.id)


def _show(data: pd.DataFrame, curves: Curves, steps: int, height: int, log: bool) -> None:
    dark = is_dark()
    ends = (0.0, 1.0) if curves.share else domain_of(data, list(curves.names), log)
    picture = (
        curves.title,
        tuple(curves.names.items()),
        curves.hues,
        steps,
        height,
        log,
        dark,
        tuple(data.columns),
        ends,
    )
    spec = dict(chart_spec(picture, lambda: curve_chart(data, curves, steps=steps, dark=dark, log=log, height=height)))
    for name in ("data", "datasets"):  # sent beside the chart, so that a new point changes nothing else
        spec.pop(name, None)
    st.vega_lite_chart(data, spec, theme="streamlit", width="stretch", key=f"chart_{curves.axis}_{height}")
