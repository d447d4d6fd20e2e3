"""Draw what a model of images predicts: how probable each digit is.

viz.classes(reading)
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from xformer.analysis.images import classes as classes_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered


def classes(reading: Reading, *, before: Reading | None = None, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """The probabilities of `analysis.classes` as bars from 0 to 1, those of the run `before` as frames.

    The right digit is marked, or, where nobody knows it, the likeliest is stressed.
    """
    runs = {"original": reading} if before is None else {"original": before, "changed": reading}
    table = pd.concat([classes_table(run).assign(run=name) for name, run in runs.items()])
    strong = (
        table["right"] if reading.has_right_answer else table["digit"] == reading.subject.labels[reading.predicted[0]]
    )
    base = alt.Chart(table.assign(strong=strong)).encode(
        x=alt.X("digit:N", sort=None, title="digit", axis=alt.Axis(labelAngle=0, labelFontSize=15)),
        y=alt.Y("probability:Q", scale=alt.Scale(domain=[0, 1]), title="probability", axis=alt.Axis(format=".0%")),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("digit:N", title="class"),
            alt.Tooltip("probability:Q", format=".6f"),
        ],
    )
    last = base.transform_filter(alt.datum.run == list(runs)[-1])
    right = theme.pick(theme.RIGHT.colour, dark)
    layers = [
        last.mark_bar(color=theme.pick(theme.PRIMARY, dark)).encode(
            opacity=alt.OpacityValue(**alt.condition(alt.datum.strong, alt.value(1.0), alt.value(0.55)))
        ),
        last.transform_filter(alt.datum.right).mark_text(
            text=f"{theme.RIGHT.mark} right", dy=-9, fontSize=12, color=right
        ),
    ]
    if before is not None:
        frames = base.transform_filter(alt.datum.run == "original")
        layers.append(frames.mark_bar(filled=False, stroke=theme.pick(theme.TEXT, dark), strokeWidth=1.5))
    return layered(*layers, height=220)
