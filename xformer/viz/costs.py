"""Draw what several heads cost, in multiplications.

viz.attention_costs(n_tokens=64, d_model=512, n_heads=8)
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from xformer.analysis.principles import attention_costs as costs_table
from xformer.viz import theme
from xformer.viz.charts import layered


def attention_costs(
    *, n_tokens: int, d_model: int, n_heads: int, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.attention_costs` of each way to have heads, stacked by part, with the sum that torch measured behind."""
    frame = costs_table(n_tokens=n_tokens, d_model=d_model, n_heads=n_heads)
    parts = list(dict.fromkeys(frame["part"]))
    order = list(dict.fromkeys(frame["heads"]))
    bars = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            alt.Y("heads:N", sort=order, title=None, axis=alt.Axis(labelLimit=140)),
            alt.X(
                "count:Q", title="multiplications", axis=alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=5)
            ),
            color=alt.Color(
                "part:N",
                title=None,
                sort=parts,
                scale=alt.Scale(domain=parts, range=theme.head_hues(len(parts), dark)),
                legend=alt.Legend(orient="top", columns=4, labelLimit=140),
            ),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("heads:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("count:Q", format=",", title="from the shapes"),
                alt.Tooltip("measured:Q", format=",", title="whole layer, measured"),
            ],
        )
        .transform_calculate(rank=f"indexof({parts!r}, datum.part)")
    )
    sums = frame.drop_duplicates("heads").assign(shown=[f"{m:,}" for m in frame.drop_duplicates("heads")["measured"]])
    words = (
        alt.Chart(sums)
        .mark_text(align="left", dx=6, color=theme.pick(theme.TEXT, dark))
        .encode(alt.Y("heads:N", sort=order, title=None), alt.X("measured:Q"), text=alt.Text("shown:N"))
    )
    room = alt.Chart(pd.DataFrame({"measured": [1.18 * max(frame["measured"])]}))
    return layered(bars, words, room.mark_point(opacity=0).encode(alt.X("measured:Q")), height=200)
