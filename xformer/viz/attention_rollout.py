"""The picture of an attention rollout: one heatmap a layer, side by side, on one fixed scale from 0 to 1."""

from __future__ import annotations

import altair as alt
import numpy as np

from xformer.analysis.attention_patterns import rollout as rollout_table
from xformer.reading import Reading
from xformer.viz.charts import InlineRows
from xformer.viz.theme import sequential, vega_scale

ROW_WIDTH = 1080
"""Pixels that the layers share in a row."""
MOST_CELLS = 20_000


def rollout(reading: Reading, *, stack: str | None = None, dark: bool = False) -> alt.FacetChart:
    """`analysis.rollout`: a heatmap for each layer; rows are positions, columns the input tokens that reach them.

    Of layers with more than `MOST_CELLS` cells together so many are drawn as fit, evenly spaced, the last among them.
    """
    frame = rollout_table(reading, stack=stack)
    layers = frame["layer"].unique()
    every = -(-len(frame) // MOST_CELLS)
    frame = frame.loc[frame["layer"].isin(list(layers)[::-1][::every])]
    order = list(dict.fromkeys(frame["query"]))
    size = int(np.clip(26 * len(order), 150, 320))
    scale = alt.Scale(**vega_scale(sequential(dark), 0, 1))
    return (
        alt.Chart(InlineRows(frame.to_dict("records")))  # a table of Altair's has 5,000 rows at most
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=order, title="input token", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("query:N", sort=order, title="position", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color("share:Q", scale=scale, title="share"),
            tooltip=[
                alt.Tooltip("layer:O"),
                alt.Tooltip("query:N"),
                alt.Tooltip("key:N"),
                alt.Tooltip("share:Q", format=".6f"),
            ],
        )
        .properties(width=size, height=size)
        .facet(facet=alt.Facet("layer:O", title="after layer"), columns=max(1, ROW_WIDTH // (size + 20)))
    )
