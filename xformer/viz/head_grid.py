"""All heads of all attention layers as small pictures, a row a layer: the attention view's grid, as a chart.

viz.attention_grid(reading)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from xformer.blocks import block_max, factor
from xformer.reading import Reading
from xformer.subjects.foreign.small_pattern import LEVELS, MASKED, NAN
from xformer.viz.charts import inline, layered
from xformer.viz.packing import AnyLayer, pattern_layers
from xformer.viz.theme import MASKED as GREY
from xformer.viz.theme import TEXT, head_hue, pick, sequential, vega_scale

MOST_CELLS = 12_000
"""So many cells in all; above it the largest weight of a block stands for all of it, as in the browser."""
DECADES = 4
"""A logarithmic scale begins at 10 to the power of −4."""
GAP, TITLES, TOP, WIDE, BAR = 8, 150, 24, 620, 7
"""CSS pixels: between two heads, for the layers' names, for the heads' names, of all heads, and for how far a head moved."""


def share_of(
    weights: Float[np.ndarray, "query key"], runs: Sequence[Float[np.ndarray, "query key"]], scale: str
) -> Float[np.ndarray, "query key"]:
    """Where each weight lies on a scale of `viz.attention`, from 0 to 1; NaN where nothing is drawn. `runs` has the head in
    each of the runs that are shown on the same scale."""
    if scale == "log":
        return np.clip(1 + np.log10(np.maximum(weights, 1e-12)) / DECADES, 0, 1)
    if scale == "rest":
        weights, runs = weights.copy(), [run[:, 1:] for run in runs]
        weights[:, 0] = np.nan
    top = max((np.nanmax(run, initial=0.0) for run in runs if run.size), default=0.0) if scale != "fixed" else 1.0
    return np.clip(weights / (top or 1.0), 0, 1)


def attention_grid(
    reading: Reading, *, before: Reading | None = None, scale: str = "fixed", dark: bool = False
) -> alt.TopLevelMixin:
    """Every head of every attention layer as a small map of its weights, rows are queries and columns are keys.

    `scale` is one of `viz.attention`. With the original run `before` a bar below each head says how far it moved, from 0 to 1;
    a silenced head is crossed out. Masked cells are grey.
    """
    layers = pattern_layers(reading)
    others = pattern_layers(before) if before is not None else layers
    n_heads = sum(layer.shape[0] for layer in layers)
    side, columns = max(4, min(48, isqrt(MOST_CELLS // n_heads))), max(layer.shape[0] for layer in layers)
    thumb, below = min(104, max(26, WIDE // columns - GAP)), 0 if before is None else BAR
    cells, frames, bars, crossed = [], [], [], []
    for row, (layer, other) in enumerate(zip(layers, others, strict=True)):
        weights = [_weights(one, side, scale) for one in ((layer,) if before is None else (layer, other))]
        moved = layer.moved_from(other) if before is not None else ()
        tall, wide = (thumb * max(0.4, size / max(layer.shape[1:])) for size in layer.shape[1:])
        for head in range(layer.shape[0]):
            x, y = TITLES + head * (thumb + GAP), TOP + row * (thumb + GAP + below)
            share = _drawn(weights[0][head], [one[head] for one in weights], scale)
            rows, cols = share.shape
            at = np.indices(share.shape)
            cells.append(pd.DataFrame({
                "x": x + at[1].ravel() * wide / cols, "x2": x + (at[1].ravel() + 1) * wide / cols,
                "y": y + at[0].ravel() * tall / rows, "y2": y + (at[0].ravel() + 1) * tall / rows,
                "share": np.nan_to_num(share).ravel(), "seen": ~np.isnan(share).ravel(),
            }))  # fmt: skip
            frames.append({"x": x, "x2": x + wide, "y": y, "y2": y + tall})
            if before is not None:
                bars.append(
                    {"x": x, "x2": x + wide * min(1.0, float(moved[head])), "y": y + tall + 3, "y2": y + tall + 6}
                )
            if head in layer.silenced:
                crossed += [{**frames[-1]}, {**frames[-1], "y": y + tall, "y2": y}]
    width, height = TITLES + columns * (thumb + GAP), TOP + len(layers) * (thumb + GAP + below)
    return _chart(
        inline(pd.concat(cells)), frames, bars, crossed, _words(layers, thumb, below, dark), width, height, scale, dark
    )


def _weights(layer: AnyLayer, side: int, scale: str) -> Float[np.ndarray, "head row col"]:
    """The weights of each head, pooled; NaN where masked, and what is left without the first key on the scale "rest"."""
    small = layer.reduced(side)
    codes = small.planes.copy()
    if scale == "rest":
        codes[:, :, 0] = small.rest
    weights = (codes / LEVELS) ** 2 * small.peaks[:, None, None]
    weights = np.where(np.isin(codes, (MASKED, NAN)), -np.inf, weights)
    for axis in (1, 2):
        weights = block_max(weights, factor(weights.shape[axis], side), axis)
    return np.where(np.isfinite(weights), weights, np.nan)


def _drawn(
    weights: Float[np.ndarray, "row col"], runs: Sequence[Float[np.ndarray, "row col"]], scale: str
) -> Float[np.ndarray, "row col"]:
    """On the scale "rest" the first column is without the first key already, and stays."""
    return share_of(weights, runs, "own" if scale == "rest" else scale)


def _words(layers: Sequence[AnyLayer], thumb: float, below: float, dark: bool) -> pd.DataFrame:
    rows = [
        {"x": TITLES - 8, "y": TOP + row * (thumb + GAP + below) + thumb / 2, "text": layer.title, "hue": pick(TEXT, dark),
         "align": "right"}
        for row, layer in enumerate(layers)
    ]  # fmt: skip
    for head in range(max(layer.shape[0] for layer in layers)):
        name = f"head {head + 1}" if thumb >= 62 else str(head + 1)
        rows.append({"x": TITLES + head * (thumb + GAP) + thumb / 2, "y": TOP / 2, "text": name,
                     "hue": head_hue(head, dark), "align": "center"})  # fmt: skip
    return pd.DataFrame(rows)


def _chart(
    cells: dict[str, Any],
    frames: list[dict[str, float]],
    bars: list[dict[str, float]],
    crossed: list[dict[str, float]],
    words: pd.DataFrame,
    width: float,
    height: float,
    scale: str,
    dark: bool,
) -> alt.TopLevelMixin:
    ink = pick(TEXT, dark)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, width], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False), axis=None)
    box = {"x": x, "y": y, "x2": alt.X2("x2:Q"), "y2": alt.Y2("y2:Q")}
    titles = {"own": "share of its largest weight", "rest": "share of its largest weight, without the first key"}
    said: dict[str, Any] = (
        {"labelExpr": f"format(pow(10, {DECADES} * (datum.value - 1)), '~g')"} if scale == "log" else {}
    )
    legend = alt.Legend(
        orient="bottom", direction="horizontal", gradientLength=160, values=[0, 0.5, 1], titleLimit=400, **said
    )
    colour = alt.Color(
        "share:Q",
        scale=alt.Scale(**vega_scale(sequential(dark), 0, 1)),
        title=titles.get(scale, "weight"),
        legend=legend,
    )
    grey = alt.condition("datum.seen", colour, alt.value(GREY[dark]))
    layers = [
        alt.Chart(cells).mark_rect(strokeWidth=0).encode(**box, color=alt.ColorValue(**grey)),
        alt.Chart(pd.DataFrame(frames)).mark_rect(fillOpacity=0, stroke=ink, strokeOpacity=0.3).encode(**box),
    ]
    if bars:
        layers.append(alt.Chart(pd.DataFrame(bars)).mark_rect(color=ink).encode(**box))
    if crossed:
        layers.append(alt.Chart(pd.DataFrame(crossed)).mark_rule(color=ink).encode(**box))
    for align in ("right", "center"):
        mark = alt.Chart(words[words["align"] == align]).mark_text(align=align, fontSize=12)
        layers.append(mark.encode(x=x, y=y, text=alt.Text("text:N"), color=alt.Color("hue:N", scale=None)))
    # Each part has colours of its own: one legend, that of the weights.
    return layered(*layers).resolve_scale(color="independent").properties(width=width, height=height)
