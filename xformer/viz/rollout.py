"""The picture of an attention rollout: one heatmap a layer, side by side, on one fixed scale from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from xformer.viz.planes import factor
from xformer.viz.theme import sequential, vega_scale

MOST = 48
"""So many tokens a side are drawn one by one."""
WIDTH = 1080
"""Pixels that the layers share in a row."""


def rollout_frame(reached: Float[np.ndarray, "layer query key"], labels: Sequence[str]) -> pd.DataFrame:
    """One row for each cell: after which layer, how much of the token at `key` could have reached `query`.

    Of more than `MOST` tokens, neighbours are taken together: what any of the keys could have given the queries on average, so
    that rows still sum to 1.
    """
    names = np.array([f"{position} {label}" for position, label in enumerate(labels)])
    size = factor(len(names), MOST)
    if size > 1:
        begins = np.arange(0, len(names), size)
        counts = np.diff(np.append(begins, len(names)))  # [block]
        reached = np.add.reduceat(np.add.reduceat(reached, begins, axis=1) / counts[:, None], begins, axis=2)
        names = np.array([f"{names[at]} … {names[min(at + size, len(names)) - 1]}" for at in begins])
    layer, query, key = np.meshgrid(*(np.arange(size) for size in reached.shape), indexing="ij")
    return pd.DataFrame(
        {
            "layer": (layer + 1).ravel(),
            "query": names[query.ravel()],
            "key": names[key.ravel()],
            "share": reached.ravel(),
        }
    )


def rollout_chart(frame: pd.DataFrame, *, dark: bool = False) -> alt.FacetChart:
    """A heatmap for each layer; rows are positions, columns the input tokens they could hold something of."""
    order = list(dict.fromkeys(frame["query"]))
    size = int(np.clip(26 * len(order), 150, 320))
    scale = alt.Scale(**vega_scale(sequential(dark), 0, 1))
    return (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=order, title="input token", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("query:N", sort=order, title="position", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color("share:Q", scale=scale, title="share"),
            tooltip=["layer:O", "query:N", "key:N", alt.Tooltip("share:Q", format=".6f")],
        )
        .properties(width=size, height=size)
        .facet(facet=alt.Facet("layer:O", title="after layer"), columns=max(1, WIDTH // (size + 20)))
    )
