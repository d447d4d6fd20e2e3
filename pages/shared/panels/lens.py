"""“What the stream would say if it stopped here”: the logit lens after every sublayer, and when the answer is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.layout import WIDE, chart_spec, is_dark, places, run_title
from pages.shared.notebook import footer, heading, recording
from pages.shared.resources import Run
from pages.shared.view import ORIGINAL, View
from xformer.analysis.lens import decided, lens
from xformer.viz.lens import lens_chart


def lens_panel(view: View, runs: Mapping[str, Run]) -> dict[str, pd.DataFrame]:
    """Draw the lens of every run, the cells that a change moved marked; returns the frames."""
    frames = {name: _lens(*view.key(name)) for name in runs}
    own = frames[ORIGINAL]
    heading("What the stream would say if it stopped here")
    norm = "the model’s last norm and its unembedding" if view.checkpoint.config.final_norm else "the unembedding"
    which = "the decoder’s stream" if view.is_pair else "the stream"
    first = own["position"].min()
    left_out = f" The {first} positions before the answer have nothing to get right and are left out." if first else ""
    moved = " A dashed frame: another token than in the original." if view.is_changed else ""
    st.caption(
        f"Logit lens: {which} after each step, read with {norm}. ✓ and the outline mark the right answer; "
        f"the last row of the stream is the model’s output itself.{left_out}{moved}"
    )
    n = own["position"].nunique()
    beside = n <= WIDE
    for index, (place, (name, run)) in enumerate(zip(places(len(runs), n), runs.items(), strict=True)):
        look: dict[str, Any] = {
            "dark": is_dark(),
            "title": run_title(name) if len(runs) > 1 else "",
            "named": index == 0 or not beside,
            "legend": len(runs) == 1 or not beside,
        }
        before = None if name == ORIGINAL else own
        draw = partial(lens_chart, frames[name], view.reads(run, "decoder"), before=before, **look)
        spec = chart_spec(("lens", *view.key(name), *look.values()), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"lens_{index}")
    table = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    footer(view, _code(view, runs[view.shown]), table, "lens")
    return frames


def _code(view: View, run: Run) -> list[str]:
    frame = "lens(checkpoint.model, trace, labels, example.labels[0])"
    lines = [
        "from xformer.analysis.lens import lens",
        "from xformer.viz.lens import lens_chart",
        f"example = checkpoint.task.example({list(run.example.source)})",
        "labels = checkpoint.task.vocabulary.labels",
        f"reads = checkpoint.task.position_names(example.{'stream' if run.example.target is None else 'target'}[0].tolist())",
    ]
    if not view.is_changed:
        return [*lines, f"lens_chart({frame}, reads, dark=False)"]
    original = view.original()
    return [
        *lines,
        f"own = {recording(original)}",
        f"own_answers = checkpoint.task.example({list(original.example.source)}).labels[0]",
        "before = lens(checkpoint.model, own, labels, own_answers)",
        f"lens_chart({frame}, reads, dark=False, before=before)",
    ]


@st.cache_data(max_entries=64, show_spinner=False)
def _lens(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    run, checkpoint = resources.run(model, source, mask, changes), resources.checkpoint(model)
    assert checkpoint.task is not None
    return lens(checkpoint.model, run.trace, checkpoint.task.vocabulary.labels, run.example.labels[0])


def when_decided(frame: pd.DataFrame, prefix: str) -> str:
    """When a run's outputs come to stay right, in a sentence."""
    settled = decided(frame)
    total = frame["position"].nunique()
    if settled.empty:
        return f"{prefix}no output is right in the end, so none was ever decided for good."
    counts = Counter(settled["point"])
    order = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    told = ", ".join(f"{counts[point]} after **{point}**" for point in order if counts[point])
    never = total - len(settled)
    if total == 1:
        return f"{prefix}The output becomes right for good after **{settled.iloc[0]['point']}**."
    return (
        f"{prefix}{total} outputs, of which these become right for good: {told}"
        + (f"; {never} end{'s' if never == 1 else ''} wrong" if never else "")
        + "."
    )
