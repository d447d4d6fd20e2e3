"""One attention head as a heatmap: in one run, or in the original and a changed run with their difference.

viz.attention(reading, layer=2, head=1)
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from xformer.analysis.attention_patterns import attention as attention_table
from xformer.analysis.attention_patterns import pattern_cells
from xformer.blocks import block_max, factor
from xformer.reading import Reading
from xformer.viz.embeddings import rows_height
from xformer.viz.theme import MASKED, diverging, sequential, vega_scale

LEAST = 1e-4
"""Where a logarithmic scale begins."""
NOTHING = 1e-12
MOST_CELLS = 64
"""So many positions a side are drawn one by one; a chart of more would be as heavy as a film."""


def attention(
    reading: Reading,
    *,
    layer: int,
    head: int,
    around: tuple[int, int] | None = None,
    before: Reading | None = None,
    scale: str = "fixed",
    height: int | None = None,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """The weights of one head, `analysis.attention`. `scale` is "fixed" from 0 to 1, "own" up to its largest weight, "log" from
    0.0001 to 1, or "rest" up to its largest weight besides the first key, which is left out then.

    Masked cells are grey, never the colour of a zero. More than `MOST_CELLS` positions a side are pooled by their largest
    weight; the cells `around` one, (query, key), are drawn one by one. With the original run `before`: both on one scale, and
    by how much each weight changed. Cells are squares; with a `height` the rows of one run share so many pixels, and the chart
    is as wide as its place.
    """
    after = attention_table(reading, layer=layer, head=head, around=around)
    if before is None:
        return head_chart(after, scale=scale, height=height, dark=dark)
    return _changed_chart(attention_table(before, layer=layer, head=head, around=around), after, scale=scale, dark=dark)


def head_chart(
    frame: pd.DataFrame, *, scale: str = "fixed", height: int | None = None, dark: bool = False
) -> alt.TopLevelMixin:
    """The cells of a head, as `analysis.attention` has them, as a heatmap."""
    frame = pooled(_left_out(frame, scale), MOST_CELLS)
    return _heatmap(frame, "weight", _scale(frame["weight"].to_numpy(), scale, dark), "", dark, height)


def _left_out(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The cells without those of the first key, where a scale is without it; for a logarithm no weight is 0."""
    if scale == "log":
        return frame.assign(weight=frame["weight"].clip(lower=NOTHING))
    if scale != "rest":
        return frame
    is_first = frame["key"] == frame["key"].iloc[0]
    return frame.assign(allowed=frame["allowed"] & ~is_first, weight=frame["weight"].mask(is_first))


def _scale(weights: np.ndarray, scale: str, dark: bool) -> dict[str, Any]:
    if scale == "log":
        colours = vega_scale(sequential(dark), 0, 1)
        return {**colours, "type": "log", "domain": np.geomspace(LEAST, 1, len(colours["range"])).tolist()}
    top = float(np.nanmax(weights, initial=0.0)) if scale in ("own", "rest") else 1.0
    return vega_scale(sequential(dark), 0, top or 1.0)


def _changed_chart(
    before: pd.DataFrame, after: pd.DataFrame, *, scale: str = "fixed", dark: bool = False
) -> alt.TopLevelMixin:
    """A head in the original and in a changed run, both on one scale, and by how much each weight changed."""
    before, after = _left_out(before, scale), _left_out(after, scale)
    moved = after.assign(weight=after["weight"].fillna(0.0) - before["weight"].fillna(0.0))
    moved["allowed"] = before["allowed"] | after["allowed"]
    moved["weight"] = moved["weight"].where(moved["allowed"])
    weights = np.concatenate([before["weight"].to_numpy(), after["weight"].to_numpy()])
    limit = float(np.nanmax(np.abs(moved["weight"]), initial=0.0)) if scale in ("own", "rest") else 1.0
    colours = _scale(weights, scale, dark)
    signed = vega_scale(diverging(dark), -(limit or 1.0), limit or 1.0)
    charts = [
        _heatmap(pooled(before, MOST_CELLS), "weight", colours, "original", dark),
        _heatmap(pooled(after, MOST_CELLS), "weight", colours, "changed", dark),
        _heatmap(pooled(moved, MOST_CELLS, signed=True), "difference", signed, "changed − original", dark),
    ]
    return alt.hconcat(*charts).resolve_scale(color="independent")


def pooled(frame: pd.DataFrame, most: int, *, signed: bool = False) -> pd.DataFrame:
    """The cells of a head in blocks, at most `most` a side: of each the largest weight, of a difference the one farthest from
    0. A block is masked where all of it is. Up to `most` positions a side nothing changes."""
    queries, keys = frame["query"].unique().tolist(), frame["key"].unique().tolist()
    if max(len(queries), len(keys)) <= most:
        return frame
    tall, wide = factor(len(queries), most), factor(len(keys), most)

    def blocks(values: np.ndarray) -> np.ndarray:
        return block_max(block_max(values.reshape(len(queries), len(keys)), tall, axis=0), wide, axis=1)

    def named(labels: list[str], n: int) -> list[str]:
        return [
            labels[at] + (f" … {labels[min(at + n, len(labels)) - 1]}" if n > 1 else "")
            for at in range(0, len(labels), n)
        ]

    weight = frame["weight"].to_numpy(float)
    allowed = frame["allowed"].to_numpy(bool)
    high = blocks(np.where(allowed, weight, -np.inf))
    if signed:
        low = -blocks(np.where(allowed, -weight, -np.inf))
        high = np.where(-low > high, low, high)
    seen = np.isfinite(high)
    return pattern_cells(np.where(seen, high, 0.0), seen, named(queries, tall), named(keys, wide))


def _heatmap(
    frame: pd.DataFrame, what: str, scale: dict[str, Any], title: str, dark: bool, height: int | None = None
) -> alt.Chart:
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    x, y, limit, legend = "key: what it looks at", "query: the position that looks", 180, alt.Legend()
    cell = max(6, min(30, 420 // max(len(queries), len(keys))))
    size = {"width": cell * len(keys), "height": cell * len(queries)}
    if height is not None:
        x, y, limit, legend = "key", "query", 50, alt.Legend(gradientLength=105, values=[0, 0.5, 1])
        size = {"height": rows_height(len(queries), height, around=100)}
    colour = alt.Color("shade:Q", scale=alt.Scale(**scale), title=what, legend=legend)
    axis = alt.Axis(labelOverlap=True, labelLimit=limit)
    return (
        alt.Chart(frame, title=title)
        .transform_calculate(
            shade="isValid(datum.weight) ? datum.weight : 0"
        )  # Vega gives what is no number the colour of a zero
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=keys, title=x, axis=axis),
            y=alt.Y("query:N", sort=queries, title=y, axis=axis),
            color=alt.ColorValue(**alt.condition("datum.allowed", colour, alt.value(MASKED[dark]))),
            tooltip=[
                alt.Tooltip("query:N"),
                alt.Tooltip("key:N"),
                alt.Tooltip("allowed:N"),
                alt.Tooltip("weight:Q", title=what, format=".6f"),
            ],
        )
        .properties(**size)
    )
