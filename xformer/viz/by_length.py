"""Draw how long a model can go: its share of right answers at each length of input, with the lengths of its training shaded.

viz.accuracy_by_length(reading)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.scoring import SAMPLES
from xformer.analysis.scoring import accuracy_by_length as table_of
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered


def accuracy_by_length(
    reading: Reading,
    *,
    lengths: Sequence[int] | None = None,
    samples: int = SAMPLES,
    seed: int = 1,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
    dark: bool = False,
) -> alt.TopLevelMixin:
    """`analysis.accuracy_by_length`: whole answers right with their 95 % intervals, and single tokens; shaded are the lengths
    that training showed. `table` is that of the analysis where it is there already, `unit` what a length counts."""
    frame = table_of(reading, lengths=lengths, samples=samples, seed=seed) if table is None else table
    hues = {"whole answers": theme.head_hue(0, dark), "single tokens": theme.head_hue(1, dark)}
    names = {"exact_match": "whole answers", "token_accuracy": "single tokens"}
    long = frame.melt(["length", "low", "high", "samples", "trained"], list(names), "what", "share")
    long["what"] = [names[what] for what in long["what"]]
    x = alt.X(
        "length:Q", title=f"length of the input, in {unit}", scale=alt.Scale(nice=False), axis=alt.Axis(format="d")
    )
    y = alt.Y("share:Q", title="right", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = alt.Color(
        "what:N", title=None, scale=alt.Scale(domain=list(hues), range=list(hues.values())),
        legend=alt.Legend(orient="top"),
    )  # fmt: skip
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("what:N", title="of"),
        alt.Tooltip("share:Q", title="right", format=".1%"),
        alt.Tooltip("samples:Q", title="inputs"),
        alt.Tooltip("trained:N", title="trained on"),
    ]
    shown = frame[frame["trained"]]["length"]
    ends = pd.DataFrame(
        {"from": [shown.min() - 0.5], "to": [shown.max() + 0.5]} if len(shown) else {"from": [], "to": []}
    )
    shade = (
        alt.Chart(ends)
        .mark_rect(opacity=0.12, color=theme.pick(theme.HEAD_HUES[0], dark))
        .encode(x="from:Q", x2="to:Q")
    )
    band = (
        alt.Chart(frame)
        .mark_area(opacity=0.25, color=hues["whole answers"])
        .encode(x, alt.Y("low:Q", title="right"), alt.Y2("high:Q"))
    )
    lines = alt.Chart(long).mark_line(point=alt.OverlayMarkDef(size=18)).encode(x, y, colour, tooltip=tooltip)
    return layered(shade, band, lines, height=300)
