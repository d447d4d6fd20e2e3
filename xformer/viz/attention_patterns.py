"""Draw attention patterns: one head, all heads as a grid or as arcs, and attention rollout."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from xformer.adapters.on_demand import LEVELS, NAN
from xformer.adapters.on_demand import MASKED as MASKED_CODE
from xformer.analysis.attention_patterns import attention as attention_table
from xformer.analysis.attention_patterns import pattern_cells
from xformer.analysis.attention_patterns import rollout as rollout_table
from xformer.blocks import block_max, factor
from xformer.errors import EditError
from xformer.reading import Reading
from xformer.viz.charts import InlineRows, inline, layered
from xformer.viz.embeddings import rows_height
from xformer.viz.packing import AnyLayer, pattern_layers, visible
from xformer.viz.theme import MASKED, TEXT, diverging, head_hue, pick, sequential, vega_scale

LEAST = 1e-4
"""Where a logarithmic scale begins."""
NOTHING = 1e-12
MOST_CELLS = 64
"""The most queries or keys of one head that are drawn one by one; longer patterns are pooled."""


def attention(
    reading: Reading,
    *,
    layer: int,
    head: int,
    around: tuple[int, int] | None = None,
    before: Reading | None = None,
    scale: str = "fixed",
    height: int | None = None,
    title: str = "",
    legend: bool = True,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw the weights of one head as a matrix, `analysis.attention`.

    `scale` is "fixed" from 0 to 1, "own" up to its largest weight, "log" from 0.0001 to 1, or "without_first_token" up to its
    largest weight besides the first key, which is left out then.

    Masked cells are grey, never the colour of a zero. More than `MOST_CELLS` positions a side are pooled by their largest
    weight; the cells `around` one, (query, key), are drawn one by one. With the original run `before`: both on one scale, and
    by how much each weight changed. Cells are squares; with a `height` the rows of one run share so many pixels, and the chart
    is as wide as its place.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        around: A cell (query, key) around which every cell is kept.
        before: The original run, to compare with.
        scale: "fixed" from 0 to 1, "own" to the largest weight, "log", or "without_first_token".
        height: The height of the chart, in pixels.
        title: The title of the chart of one run.
        legend: Whether the chart of one run has a legend.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention(reading, layer=2, head=1)
    """
    after = attention_table(reading, layer=layer, head=head, around=around)
    if before is None:
        return head_chart(after, scale=scale, height=height, title=title, legend=legend, dark=dark)
    return _changed_chart(attention_table(before, layer=layer, head=head, around=around), after, scale=scale, dark=dark)


def head_chart(
    frame: pd.DataFrame,
    *,
    scale: str = "fixed",
    height: int | None = None,
    title: str = "",
    legend: bool = True,
    dark: bool = False,
) -> alt.TopLevelMixin:
    """The cells of a head, as `analysis.attention` has them, as a heatmap."""
    frame = pooled(_left_out(frame, scale), MOST_CELLS)
    return _heatmap(frame, "weight", _scale(frame["weight"].to_numpy(), scale, dark), title, dark, height, legend)


def _left_out(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The cells without those of the first key, where a scale is without it; for a logarithm no weight is 0."""
    if scale == "log":
        return frame.assign(weight=frame["weight"].clip(lower=NOTHING))
    if scale != "without_first_token":
        return frame
    is_first = frame["key"] == frame["key"].iloc[0]
    return frame.assign(allowed=frame["allowed"] & ~is_first, weight=frame["weight"].mask(is_first))


def _scale(weights: np.ndarray, scale: str, dark: bool) -> dict[str, Any]:
    if scale == "log":
        colours = vega_scale(sequential(dark), 0, 1)
        return {**colours, "type": "log", "domain": np.geomspace(LEAST, 1, len(colours["range"])).tolist()}
    top = float(np.nanmax(weights, initial=0.0)) if scale in ("own", "without_first_token") else 1.0
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
    limit = float(np.nanmax(np.abs(moved["weight"]), initial=0.0)) if scale in ("own", "without_first_token") else 1.0
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


def titled(title: str) -> int:
    """Pixels of a title above a chart."""
    return 36 if title else 0


def _heatmap(
    frame: pd.DataFrame,
    what: str,
    scale: dict[str, Any],
    title: str,
    dark: bool,
    height: int | None = None,
    has_legend: bool = True,
) -> alt.Chart:
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    x, y, limit, legend = "key: what it looks at", "query: the position that looks", 180, alt.Legend()
    cell = max(6, min(30, 420 // max(len(queries), len(keys))))
    size = {"width": cell * len(keys), "height": cell * len(queries)}
    if height is not None:
        x, y, limit, legend = "key", "query", 50, alt.Legend(gradientLength=105, values=[0, 0.5, 1])
        size = {"height": rows_height(len(queries), height, around=100 + titled(title))}
    colour = alt.Color("shade:Q", scale=alt.Scale(**scale), title=what, legend=legend if has_legend else None)
    axis = alt.Axis(labelOverlap=True, labelLimit=limit)
    return (
        alt.Chart(frame, title=title)
        # Vega draws NaN in the colour of 0, so masked cells get their own condition.
        .transform_calculate(shade="isValid(datum.weight) ? datum.weight : 0")
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=keys, title=x, axis=axis),
            y=alt.Y("query:N", sort=queries, title=y, axis=axis),
            color=alt.condition("datum.allowed", colour, alt.value(MASKED[dark])),
            tooltip=["query:N", "key:N", "allowed:N", alt.Tooltip("weight:Q", title=what, format=".6f")],
        )
        .properties(**size)
    )


ROW_WIDTH = 1080
"""Pixels that the layers share in a row."""

MOST_ROLLOUT_CELLS = 20_000
"""Cells of all layers of a rollout together; of more, evenly spaced layers are drawn."""


def rollout(reading: Reading, *, stack: str | None = None, dark: bool = False) -> alt.FacetChart:
    """`analysis.rollout`: a heatmap for each layer; rows are positions, columns the input tokens that reach them.

    Where all layers have more than `MOST_ROLLOUT_CELLS` cells, evenly spaced layers are drawn, the last one among them.

    Args:
        reading: The run.
        stack: "encoder" or "decoder", where a model has both.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.rollout(reading)
    """
    frame = rollout_table(reading, stack=stack)
    layers = frame["layer"].unique()
    every = -(-len(frame) // MOST_ROLLOUT_CELLS)
    frame = frame.loc[frame["layer"].isin(list(layers)[::-1][::every])]
    order = list(dict.fromkeys(frame["query"]))
    size = int(np.clip(26 * len(order), 150, 320))
    scale = alt.Scale(**vega_scale(sequential(dark), 0, 1))
    return (
        alt.Chart(InlineRows(frame.to_dict("records")), width=size, height=size)
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=order, title="input token", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("query:N", sort=order, title="position", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color("share:Q", scale=scale, title="share"),
            tooltip=["layer:O", "query:N", "key:N", alt.Tooltip("share:Q", format=".6f")],
        )
        .facet(facet=alt.Facet("layer:O", title="after layer"), columns=max(1, ROW_WIDTH // (size + 20)))
    )


HEAD_GRID_MOST_CELLS = 12_000
"""Cells of all heads together; larger patterns are pooled by their maximum, as in the browser."""

DECADES = 4
"""A logarithmic scale starts at 10 to the power of −4."""

GAP, TITLES, TOP, WIDE, BAR = 8, 150, 24, 620, 7
"""CSS pixels: between two heads, for the layers' names, for the heads' names, of all heads, and for how far a head moved."""


def share_of(
    weights: Float[np.ndarray, "query key"], runs: Sequence[Float[np.ndarray, "query key"]], scale: str
) -> Float[np.ndarray, "query key"]:
    """Where each weight lies on a scale of `viz.attention`, from 0 to 1; NaN where nothing is drawn. `runs` has the head in
    each of the runs that are shown on the same scale."""
    if scale == "log":
        return np.clip(1 + np.log10(np.maximum(weights, 1e-12)) / DECADES, 0, 1)
    if scale == "without_first_token":
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

    Args:
        reading: The run.
        before: The original run, to compare with.
        scale: "fixed" from 0 to 1, "own" to the largest weight, "log", or "without_first_token".
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_grid(reading)
    """
    layers = pattern_layers(reading)
    others = pattern_layers(before) if before is not None else layers
    n_heads = sum(layer.shape[0] for layer in layers)
    side, columns = max(4, min(48, isqrt(HEAD_GRID_MOST_CELLS // n_heads))), max(layer.shape[0] for layer in layers)
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
    """The weights of each head, pooled; NaN where masked, and at the first key where the scale leaves it out."""
    small = layer.reduced(side)
    codes = small.planes.copy()
    if scale == "without_first_token":
        codes[:, :, 0] = small.rest
    weights = (codes / LEVELS) ** 2 * small.peaks[:, None, None]
    weights = np.where(np.isin(codes, (MASKED_CODE, NAN)), -np.inf, weights)
    for axis in (1, 2):
        weights = block_max(weights, factor(weights.shape[axis], side), axis)
    return np.where(np.isfinite(weights), weights, np.nan)


def _drawn(
    weights: Float[np.ndarray, "row col"], runs: Sequence[Float[np.ndarray, "row col"]], scale: str
) -> Float[np.ndarray, "row col"]:
    """On the scale "without_first_token" the first column is without the first key already, and stays."""
    return share_of(weights, runs, "own" if scale == "without_first_token" else scale)


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
    titles = {
        "own": "share of its largest weight",
        "without_first_token": "share of its largest weight, without the first key",
    }
    legend = alt.Legend(orient="bottom", direction="horizontal", gradientLength=160, values=[0, 0.5, 1], titleLimit=400)
    if scale == "log":
        legend.labelExpr = f"format(pow(10, {DECADES} * (datum.value - 1)), '~g')"
    colours = alt.Scale(**vega_scale(sequential(dark), 0, 1))
    colour = alt.Color("share:Q", scale=colours, title=titles.get(scale, "weight"), legend=legend)
    grey = alt.condition("datum.seen", colour, alt.value(MASKED[dark]))
    layers = [
        alt.Chart(cells).mark_rect(strokeWidth=0).encode(**box, color=grey),
        alt.Chart(pd.DataFrame(frames)).mark_rect(fillOpacity=0, stroke=ink, strokeOpacity=0.3).encode(**box),
    ]
    if bars:
        layers.append(alt.Chart(pd.DataFrame(bars)).mark_rect(color=ink).encode(**box))
    if crossed:
        layers.append(alt.Chart(pd.DataFrame(crossed)).mark_rule(color=ink).encode(**box))
    for align in ("right", "center"):
        mark = alt.Chart(words[words["align"] == align]).mark_text(align=align, fontSize=12)
        layers.append(mark.encode(x=x, y=y, text="text:N", color=alt.Color("hue:N", scale=None)))
    # Each part has colours of its own: one legend, that of the weights.
    return layered(*layers).resolve_scale(color="independent").properties(width=width, height=height)


MOST_ARCS = 600
"""The most arcs that are drawn; the weakest are left out."""

ARCS_LEAST = 5 / 253
"""A weaker arc, as a share of the scale, is not drawn in the browser either."""

WIDTH, PITCH, TALLEST = 300, 26, 760
"""CSS pixels from side to side, from token to token, and from the first to the last one at most."""

_CURVE = np.linspace(0.0, 1.0, 17)


def attention_arcs(
    reading: Reading,
    *,
    layer: int,
    heads: Sequence[int],
    before: Reading | None = None,
    scale: str = "fixed",
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Each weight of some heads of an attention layer as an arc, the thicker the larger, in the hue of its head.

    `scale` is one of `viz.attention`. With the original run `before`: both side by side on one scale. Of more than `MOST_ARCS`
    the weakest are left out. Raises `EditError` for a head that the layer does not have.

    Args:
        reading: The run.
        layer: The layer, from 0.
        heads: The heads, from 0.
        before: The original run, to compare with.
        scale: "fixed" from 0 to 1, "own" to the largest weight, "log", or "without_first_token".
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_arcs(reading, layer=2, heads=[1])
    """
    runs = [pattern_layers(one) for one in (before, reading) if one is not None]
    if not 0 <= layer < len(runs[0]):
        raise EditError(f"The attention layers are 0 to {len(runs[0]) - 1}, got {layer}.")
    layers = [run[layer] for run in runs]
    if wrong := [head for head in heads if not 0 <= head < layers[0].shape[0]]:
        raise EditError(f"{layers[0].name} has heads 0 to {layers[0].shape[0] - 1}, got {wrong[0]}.")
    exact = [{head: np.where(np.isinf(block := one.exact(head)), np.nan, block) for head in heads} for one in layers]
    shares = [
        {head: share_of(weights[head], [run[head] for run in exact], scale) for head in heads} for weights in exact
    ]
    titles = [""] if before is None else ["original", "changed"]
    charts: list[Any] = [
        _one(one, share, title, dark) for one, share, title in zip(layers, shares, titles, strict=True)
    ]
    return charts[0] if len(charts) == 1 else alt.hconcat(*charts, spacing=40)


def _one(
    layer: AnyLayer, shares: dict[int, Float[np.ndarray, "query key"]], title: str, dark: bool
) -> alt.TopLevelMixin:
    _, n_query, n_key = layer.shape
    most = max(n_query, n_key)
    height = min(TALLEST, max(150, PITCH * most))
    curves = _curves(shares, height / most)
    domain = [f"head {head + 1}" for head in shares]
    hues = alt.Scale(domain=domain, range=[head_hue(head, dark) for head in shares])
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, 1], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[1, 0], nice=False), axis=None)
    arcs = (
        alt.Chart(inline(curves))
        .mark_line(interpolate="monotone", clip=False)
        .encode(
            x=x,
            y=y,
            order="x:Q",
            detail="arc:N",
            color=alt.Color("head:N", scale=hues, title=None, legend=alt.Legend(orient="top")),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
        )
    )
    words = [
        _arcs_words(names, side, height, x, y, dark)
        for side, names in (("left", layer.query_labels), ("right", layer.key_labels))
    ]
    return layered(arcs, *words, title=f"{layer.title}{', ' * bool(title)}{title}", width=WIDTH, height=height)


def _arcs_words(names: Sequence[str], side: str, height: float, x: alt.X, y: alt.Y, dark: bool) -> alt.Chart:
    """The tokens of one side, as many as have room, under the word for what they are."""
    n, every = len(names), max(1, int(np.ceil(13 * len(names) / height)))
    at = 0.0 if side == "left" else 1.0
    texts = [f"{i} {visible(text)}" if side == "left" else f"{visible(text)} {i}" for i, text in enumerate(names)]
    rows = [{"x": at, "y": (i + 0.5) / n, "text": texts[i]} for i in range(0, n, every)]
    rows.append({"x": at, "y": -14 / height, "text": "query" if side == "left" else "key"})
    align, shift = ("right", -8) if side == "left" else ("left", 8)
    mark = alt.Chart(pd.DataFrame(rows)).mark_text(align=align, dx=shift, color=pick(TEXT, dark), clip=False)
    return mark.encode(x=x, y=y, text="text:N")


def _curves(shares: dict[int, Float[np.ndarray, "query key"]], pitch: float) -> pd.DataFrame:
    """The points of every arc that is drawn, those of the largest weights last, so that they lie on top."""
    found = [
        (share[query, key], head, (query + 0.5) / share.shape[0], (key + 0.5) / share.shape[1])
        for head, share in shares.items()
        for query, key in zip(*np.nonzero(np.nan_to_num(share) >= ARCS_LEAST), strict=True)
    ]
    found = sorted(found)[-MOST_ARCS:]
    ease = _CURVE**2 * (3 - 2 * _CURVE)
    return pd.DataFrame(
        {
            "arc": np.repeat(np.arange(len(found)), len(_CURVE)),
            "head": np.repeat([f"head {head + 1}" for _, head, _, _ in found], len(_CURVE)),
            "x": np.tile(_CURVE, len(found)),
            "y": np.concatenate([start + (end - start) * ease for _, _, start, end in found] or [np.empty(0)]),
            "opacity": np.repeat([0.04 + 0.9 * share**0.85 for share, *_ in found], len(_CURVE)),
            "width": np.repeat([0.5 + min(2.7, 0.6 * pitch) * share for share, *_ in found], len(_CURVE)),
        }
    )
