"""“When it is decided”: the logit lens after every sublayer, and from where on each output stays what it ends as."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.residual.notes import lens_notes
from pages.shared import resources
from pages.shared.layout import WIDE, caption, chart_spec, is_dark, places, run_title
from pages.shared.notebook import footer, heading, recording
from pages.shared.position_window import answer_name, ask_window, is_judged, shown_of
from pages.shared.view import ORIGINAL, View
from xformer.analysis.lens import lens
from xformer.reading import Reading
from xformer.viz.lens import lens_chart
from xformer.viz.residual import MOST_POINTS


def lens_panel(view: View, runs: Mapping[str, Reading]) -> None:
    """Draw the lens of every run, the cells that a change moved marked, and say when the outputs are decided."""
    heading("What the stream would say if it stopped here")
    frames = {name: _lens(*view.key(name)) for name in runs}
    own = frames[ORIGINAL]
    positions = sorted(own["position"].unique().tolist())
    shown = ask_window(positions, "residual_from")
    beside, looks = len(shown) <= WIDE, {}
    for index, (place, (name, run)) in enumerate(zip(places(len(runs), len(shown)), runs.items(), strict=True)):
        look: dict[str, Any] = {
            "dark": is_dark(),
            "title": run_title(name) if len(runs) > 1 else "",
            "named": index == 0 or not beside,
            "legend": len(runs) == 1 or not beside,
            "answer": answer_name(view),
            "judged": is_judged(view),
        }
        looks[name] = look
        part, before = _at(frames[name], shown), None if name == ORIGINAL else own
        draw = partial(lens_chart, part, view.reads(run, "decoder"), before=before, **look)
        spec = chart_spec(("lens", *view.key(name), *shown, *look.values()), draw)
        frame = place.container(key=f"wide_lens_{index}")
        frame.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"lens_{index}")
    caption(_what(view, own, positions, shown))
    table = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    footer(view, _code(view, runs, looks, shown if len(shown) < len(positions) else []), table, "lens")
    lens_notes(frames, len(view.task.vocabulary), judged=is_judged(view))


def _at(frame: pd.DataFrame, positions: list[int]) -> pd.DataFrame:
    return frame.loc[frame["position"].isin(positions)]


def _what(view: View, frame: pd.DataFrame, positions: list[int], shown: list[int]) -> str:
    """What the picture is, under this model and this input."""
    norm = "the model’s last norm and its unembedding" if view.checkpoint.config.final_norm else "the unembedding"
    which = "the decoder’s stream" if view.is_pair else "the stream"
    if is_judged(view):
        outline = "✓ and the outline mark the right answer"
    elif view.task.rule.is_open_ended:
        outline = (
            "a text has no right answer; the outline marks where the likeliest character is what really comes next"
        )
    else:
        outline = "nobody knows the right answer here; the outline marks what the unchanged model says in the end"
    first, n_points = positions[0], len(set(frame["depth"]))
    left_out = f" The {first} positions before the answer have nothing to get right and are left out." if first else ""
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    moved = " A dashed frame: another token than in the original." if view.is_changed else ""
    return (
        f"Logit lens: {which} after each step, read with {norm}; {outline}. The last row of the stream is the model’s output "
        f"itself.{left_out}{thin}{moved}{shown_of(positions, shown)}"
    )


def _code(view: View, runs: Mapping[str, Reading], looks: Mapping[str, dict[str, Any]], shown: list[int]) -> list[str]:
    """The lines for the charts of all runs; `shown` are the positions of a window."""
    lines = [
        "from xformer.analysis.lens import lens",
        "from xformer.viz.lens import lens_chart",
        "labels = checkpoint.task.vocabulary.labels",
    ]
    window, charts = f'[frame["position"].between({shown[0]}, {shown[-1]})]' if shown else "", []
    for name, run in runs.items():
        trace = recording(run) if view.is_changed and name == ORIGINAL else "trace"
        answers = f"torch.tensor({run.example.labels[0].tolist()})"
        lines.append(f"frame = lens(checkpoint.model, {trace}, labels, {answers})")
        look = ", ".join(f"{key}={value!r}" for key, value in looks[name].items())
        before = "" if name == ORIGINAL else ", before=own"
        charts.append(f"chart_{len(charts)}")
        reads = view.reads(run, "decoder")
        lines.append(f"{charts[-1]} = lens_chart(frame{window}, {reads!r}, {look}{before})")
        lines += ["own = frame"] if view.is_changed and name == ORIGINAL else []
    return [*lines, charts[0] if len(charts) == 1 else f"[{', '.join(charts)}]"]


@st.cache_data(max_entries=64, show_spinner=False)
def _lens(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    run, checkpoint = resources.run(model, source, mask, changes), resources.checkpoint(model)
    assert checkpoint.task is not None
    return lens(checkpoint.model, run.trace, checkpoint.task.vocabulary.labels, run.example.labels[0])
