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
from xformer.arguments import Count
from xformer.errors import EditError
from xformer.formatting import check_option
from xformer.pooling import block_names, max_pool, max_pool_masked
from xformer.reading import Reading
from xformer.viz.charts import (
    PADDED,
    Chart,
    category_colours,
    cell_colours,
    heat_colour,
    inline,
    layered,
    masked_colours,
    matrix_axes,
    numbers,
    pixel_axes,
    small_maps,
    small_squares,
    squares,
    tooltips,
)
from xformer.viz.packing import SCALES, AnyLayer, Weights, exact_weights, pattern_layers, visible
from xformer.viz.theme import DIVERGING, SEQUENTIAL, TEXT, head_hue, vega_scale

LEAST = 1e-4
"""Start of a logarithmic scale."""
NOTHING = 1e-12
"""Replaces smaller weights on a logarithmic scale."""
MAX_CELLS = 64
"""Largest number of queries or keys of one head that are drawn individually; longer patterns are max-pooled."""


def attention(
    reading: Reading,
    *,
    layer: int,
    head: int,
    around: tuple[int, int] | None = None,
    before: Reading | None = None,
    scale: str = "fixed",
    height: Count | None = None,
    title: str = "",
    legend: bool = True,
    row_labels: bool = True,
) -> alt.TopLevelMixin:
    """Draw the attention weights of one head as a matrix (`analysis.attention`).

    Masked cells are grey, never the colour of a zero. Cells with room contain their weight. Patterns with more than `MAX_CELLS`
    positions on a side are max-pooled. With `before`, both runs are drawn on one scale, next to the change of each weight.

    Further arguments are those of `analysis.attention`.

    Args:
        before: The original run, to compare with.
        scale: "fixed" (0 to 1), "own" (up to the largest weight), "log" (0.0001 to 1), or "without_first_token" (without the
            first key, up to the largest of the other weights).
        height: The height of the matrix in pixels; the axes then have short titles. Ignored with `before`, as are the
            arguments below.
        title: The title of the chart.
        legend: Whether to draw a legend.
        row_labels: Whether to label the queries; of several heads beside each other, the first is enough.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention(reading, layer=2, head=1)
    """
    check_option("scale", scale, SCALES)
    after = attention_table(reading, layer=layer, head=head, around=around)
    if before is None:
        look: dict[str, Any] = {"height": height, "title": title, "legend": legend, "row_labels": row_labels}
        return head_chart(after, scale=scale, has_numbers=True, **look)
    return _changed_chart(attention_table(before, layer=layer, head=head, around=around), after, scale)


def head_chart(
    frame: pd.DataFrame,
    *,
    scale: str = "fixed",
    height: int | None = None,
    title: str = "",
    legend: bool = True,
    has_numbers: bool = False,
    row_labels: bool = True,
) -> alt.Chart | Chart:
    """Draw a table of `analysis.attention` as a heatmap, with the weights in its cells if they have room."""
    frame = pool_cells(_left_out(frame, scale), MAX_CELLS)
    look: dict[str, Any] = {
        "height": height,
        "has_legend": legend,
        "has_numbers": has_numbers,
        "has_row_labels": row_labels,
    }
    return _heatmap(frame, "weight", _scale(frame["weight"].to_numpy(), scale), title, **look)


def _left_out(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Prepare the cells for a scale: mask the first key for "without_first_token", replace zeros for "log"."""
    if scale == "log":
        return frame.assign(weight=frame["weight"].clip(lower=NOTHING))
    if scale != "without_first_token":
        return frame
    is_first = frame["key"] == frame["key"].iloc[0]
    return frame.assign(allowed=frame["allowed"] & ~is_first, weight=frame["weight"].mask(is_first))


def _scale(weights: np.ndarray, scale: str) -> dict[str, Any]:
    if scale == "log":
        colours = vega_scale(SEQUENTIAL, 0, 1)
        return {**colours, "type": "log", "domain": np.geomspace(LEAST, 1, len(colours["range"])).tolist()}
    top = float(np.nanmax(weights, initial=0.0)) if scale in ("own", "without_first_token") else 1.0
    return vega_scale(SEQUENTIAL, 0, top or 1.0)


def _changed_chart(before: pd.DataFrame, after: pd.DataFrame, scale: str) -> alt.TopLevelMixin:
    """Draw one head in the original and in a changed run on one scale, and the change of each weight."""
    before, after = _left_out(before, scale), _left_out(after, scale)
    moved = after.assign(weight=after["weight"].fillna(0.0) - before["weight"].fillna(0.0))
    moved["allowed"] = before["allowed"] | after["allowed"]
    moved["weight"] = moved["weight"].where(moved["allowed"])
    limit = float(np.nanmax(np.abs(moved["weight"]), initial=0.0)) if scale in ("own", "without_first_token") else 1.0
    colours = _scale(np.concatenate([before["weight"].to_numpy(), after["weight"].to_numpy()]), scale)
    signed = vega_scale(DIVERGING, -(limit or 1.0), limit or 1.0)
    charts = [
        _heatmap(pool_cells(before, MAX_CELLS), "weight", colours, "original"),
        _heatmap(pool_cells(after, MAX_CELLS), "weight", colours, "changed"),
        _heatmap(pool_cells(moved, MAX_CELLS, signed=True), "difference", signed, "changed − original"),
    ]
    return alt.hconcat(*charts).resolve_scale(color="independent")


def pool_cells(frame: pd.DataFrame, most: int, *, signed: bool = False) -> pd.DataFrame:
    """Pool the cells of a head into at most `most` blocks on a side; smaller tables are returned unchanged.

    A block takes its largest weight, or with `signed` the weight farthest from 0, and is masked if all its cells are.
    """
    queries, keys = frame["query"].unique().tolist(), frame["key"].unique().tolist()
    if max(len(queries), len(keys)) <= most:
        return frame

    def largest(values: np.ndarray) -> np.ndarray:
        return max_pool(values.reshape(len(queries), len(keys)), most)

    weight = frame["weight"].to_numpy(float)
    allowed = frame["allowed"].to_numpy(bool)
    high = largest(np.where(allowed, weight, -np.inf))
    if signed:
        low = -largest(np.where(allowed, -weight, -np.inf))
        high = np.where(-low > high, low, high)
    seen = np.isfinite(high)
    return pattern_cells(np.where(seen, high, 0.0), seen, block_names(queries, most), block_names(keys, most))


def _heatmap(
    frame: pd.DataFrame,
    what: str,
    scale: dict[str, Any],
    title: str,
    height: int | None = None,
    has_legend: bool = True,
    has_numbers: bool = True,
    has_row_labels: bool = True,
) -> alt.Chart | Chart:
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    x, y, limit, legend = "key: position attended to →", "← query: attending position", 180, alt.Legend()
    size: dict[str, Any] = dict(squares(len(queries), len(keys), 30, 420))
    if height is not None:
        x, y, limit, legend = "key", "query", 50, alt.Legend(gradientLength=105, values=[0, 0.5, 1])
        size = dict(small_squares(len(queries), len(keys), height))
    hidden = masked_colours("!datum.allowed", "!isValid(datum.weight)")
    look = {"title": what, "legend": legend if has_legend else None, "condition": hidden}
    colour = alt.Color("weight:Q", scale=alt.Scale(**scale), **look)
    across, down = matrix_axes(
        ("key:N", x, keys), ("query:N", y, queries), size, limit=limit, has_row_labels=has_row_labels
    )
    if height is not None:
        size["autosize"] = PADDED
    tip = tooltips("query:N", "key:N", "allowed:N", ("weight:Q", what, ".6f"))
    if not has_numbers or size["width"] < NUMBER_WIDTH * len(keys):
        cells = alt.Chart(frame, title=title, **size).mark_rect(invalid=None)
        return cells.encode(across, down, colour, tooltip=tip)
    low, *_, high = scale["domain"]
    weights = frame["weight"].to_numpy(dtype=float)
    ends = (weights, low, high) if scale["type"] == "linear" else (np.log(weights), np.log(low), np.log(high))
    texts = [_number(*cell, signed=low < 0) for cell in zip(frame["weight"], frame["allowed"], strict=True)]
    base = alt.Chart(frame.assign(shown=texts, cell_colour=cell_colours(scale["range"], *ends))).encode(across, down)
    cells = base.mark_rect(invalid=None).encode(colour, tooltip=tip)
    room = size["width"] / len(keys) / NUMBER_WIDTH
    return layered(cells, *numbers(base, "shown:N", size=min(10 * room, 14)), title=title, **size)


NUMBER_WIDTH = 28
"""Pixels that a number in a cell needs."""


def _number(weight: float, is_allowed: bool, *, signed: bool) -> str:
    """Return the number in a cell, as in the browser."""
    if not is_allowed:
        return ""
    if np.isnan(weight):
        return "NaN"
    return "0" if abs(weight) < 0.005 else f"{weight:{'+' if signed else ''}.2f}".replace("-", "−")


ROW_WIDTH, MOST_IN_A_ROW = 840, 5
"""Width in pixels that the layers of a row share beside their axis, and the number of layers in a row if there are many."""

MAX_ROLLOUT_CELLS = 20_000
"""Largest number of cells of all layers of a rollout together; beyond it, evenly spaced layers are drawn."""


def rollout(reading: Reading, *, stack: str | None = None) -> alt.FacetChart:
    """Draw attention rollout (`analysis.rollout`), one heatmap per layer: rows are positions, columns input tokens.

    If all layers together have more than `MAX_ROLLOUT_CELLS` cells, only evenly spaced layers are drawn, including the last.

    The arguments are those of `analysis.rollout`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.rollout(reading)
    """
    frame = rollout_table(reading, stack=stack)
    layers = frame["layer"].unique()
    every = -(-len(frame) // MAX_ROLLOUT_CELLS)
    frame = frame.loc[frame["layer"].isin(list(layers)[::-1][::every])]
    order = list(dict.fromkeys(frame["query"]))
    size = int(np.clip(26 * len(order), 150, max(150, ROW_WIDTH // min(len(layers), MOST_IN_A_ROW) - 20)))
    axis = alt.Axis(labelOverlap=True)
    cells = alt.Chart({"values": frame.to_dict("records")}, width=size, height=size).mark_rect()
    cells = cells.encode(
        alt.X("key:N", sort=order, title="input token", axis=axis),
        alt.Y("query:N", sort=order, title="position", axis=axis),
        heat_colour("share:Q", SEQUENTIAL, 0, 1, title="share"),
        tooltip=tooltips("layer:O", "query:N", "key:N", ("share:Q", "", ".6f")),
    )
    return cells.facet(facet=alt.Facet("layer:O", title="after layer"), columns=max(1, ROW_WIDTH // (size + 20)))


HEAD_GRID_MOST_CELLS = 12_000
"""Largest number of cells of all heads together; larger patterns are max-pooled, as in the browser."""

DECADES = 4
"""Decades of a logarithmic scale, which starts at 10⁻⁴."""

GAP, TITLES, TOP, WIDE = 8, 150, 24, 620
"""CSS pixels: between heads, for the names of layers, for the names of heads, and the width of all heads."""


def share_of(weights: Weights, runs: Sequence[Weights], scale: str) -> Weights:
    """Map weights to [0, 1] on a scale of `viz.attention`; NaN where nothing is drawn.

    `runs` holds the weights of all runs that share the scale.
    """
    if scale == "log":
        return np.clip(1 + np.log10(np.maximum(weights, 1e-12)) / DECADES, 0, 1)
    if scale == "fixed":
        return weights
    if scale == "without_first_token":
        weights, runs = weights.copy(), [run[..., 1:] for run in runs]
        weights[..., 0] = np.nan
    top = np.max([np.nanmax(run, axis=(1, 2), initial=0.0, keepdims=True) for run in runs], axis=0)
    return weights / np.where(top > 0, top, 1.0)


def attention_grid(reading: Reading, *, before: Reading | None = None, scale: str = "fixed") -> Chart:
    """Draw every head of every attention layer as a thumbnail of its pattern: rows are queries, columns are keys.

    Masked cells are grey, and ablated heads are crossed out. With `before`, a bar below each head shows how far its pattern
    moved, from 0 to 1.

    Args:
        reading: The run.
        before: The original run, to compare with.
        scale: A scale of `viz.attention`: "fixed", "own", "log" or "without_first_token".

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_grid(reading)
    """
    check_option("scale", scale, SCALES)
    runs = [pattern_layers(one) for one in (reading, before) if one is not None]
    n_heads = sum(layer.shape[0] for layer in runs[0])
    side = max(4, min(48, isqrt(HEAD_GRID_MOST_CELLS // n_heads)))
    shares, moved = [], []
    for layer, *others in zip(*runs, strict=True):
        weights = [_weights(one, side, scale) for one in (layer, *others)]
        # The first column already leaves out the first key, so it is kept.
        shares.append(share_of(weights[0], weights, "own" if scale == "without_first_token" else scale))
        moved += [layer.moved_from(other).tolist() for other in others]
    own = "relative to the head’s largest weight"
    titles = {"own": own, "without_first_token": f"{own}, without the first key"}
    log = {"labelExpr": f"format(pow(10, {DECADES} * (datum.value - 1)), '~g')"} if scale == "log" else {}
    crossed = [(number, head) for number, layer in enumerate(runs[0]) for head in layer.ablated]
    look = {"title": titles.get(scale, "weight"), "titleLimit": 400, **log}
    return heads_grid([layer.title for layer in runs[0]], shares, moved=moved, crossed=crossed, **look)


def _weights(layer: AnyLayer, side: int, scale: str) -> Float[np.ndarray, "head row col"]:
    """The pooled weights of each head, without the first key if the scale leaves it out; NaN where masked."""
    small = layer.reduced(side)
    codes = small.planes.copy()
    if scale == "without_first_token":
        codes[:, :, 0] = small.rest
    weights = (codes / LEVELS) ** 2 * small.peaks[:, None, None]
    return max_pool_masked(np.where(np.isin(codes, (MASKED_CODE, NAN)), np.nan, weights), side)


def heads_grid(
    titles: Sequence[str],
    shares: Sequence[Float[np.ndarray, "head row col"]],
    *,
    moved: Sequence[Sequence[float]] = (),
    crossed: Sequence[tuple[int, int]] = (),
    framed: tuple[int, int] | None = None,
    **legend: Any,
) -> Chart:
    """Draw heads as thumbnails, one row per layer and one column per head.

    Args:
        titles: The names of the layers.
        shares: The weights of each layer, from 0 to 1; NaN where masked, infinite where not a number.
        moved: How far each head moved, drawn as a bar below it.
        crossed: The (layer, head) pairs to cross out.
        framed: The (layer, head) pair to frame.
        legend: Options of the legend.
    """
    columns = max(len(layer) for layer in shares)
    thumb = min(104, max(26, WIDE // columns - GAP))
    pitch = thumb + GAP + 7 * bool(moved)
    frames = []
    for row, layer in enumerate(shares):
        tall, wide = (thumb * max(0.4, size / max(layer.shape[1:])) for size in layer.shape[1:])
        x, y = TITLES, TOP + row * pitch
        frames += [
            {"at": (row, head), "x": left, "x2": left + wide, "y": y, "y2": y + tall}
            for head, left in enumerate(x + np.arange(len(layer)) * (thumb + GAP))
        ]
    width, height = TITLES + columns * (thumb + GAP), TOP + len(shares) * pitch
    axes, ink = pixel_axes(width, height), TEXT
    table = pd.DataFrame(frames)
    place = {"x": axes[0], "x2": "x2:Q", "y": axes[1], "y2": "y2:Q"}
    layers: list[Any] = [
        small_maps(frames, [plane for layer in shares for plane in layer], axes, **legend),
        alt.Chart(table.drop(columns="at")).encode(**place).mark_rect(fillOpacity=0, stroke=ink, strokeOpacity=0.3),
    ]
    if moved:
        ends = table["x"] + (table["x2"] - table["x"]) * np.minimum(1.0, np.concatenate(moved))
        bars = pd.DataFrame({"x": table["x"], "x2": ends, "y": table["y2"] + 3, "y2": table["y2"] + 6})
        layers.append(alt.Chart(bars).mark_rect(color=ink).encode(**place))
    if crossed:
        there = alt.Chart(table[table["at"].isin(crossed)].drop(columns="at")).encode(**place)
        layers.append(there.mark_rule(color=ink))
    if framed is not None:
        there = alt.Chart(table[table["at"] == framed].drop(columns="at")).encode(**place)
        layers.append(there.mark_rect(fillOpacity=0, stroke=head_hue(framed[1]), strokeWidth=3))
    names = {"x": TITLES - 8, "y": TOP + np.arange(len(shares)) * pitch + thumb / 2, "text": titles}
    beside = alt.Chart(pd.DataFrame(names)).mark_text(align="right", fontSize=12, color=ink)
    heads = [
        {"x": TITLES + head * (thumb + GAP) + thumb / 2, "y": TOP / 2, "hue": head_hue(head),
         "text": f"head {head + 1}" if thumb >= 62 else str(head + 1)}
        for head in range(columns)
    ]  # fmt: skip
    above = alt.Chart(pd.DataFrame(heads)).mark_text(fontSize=12)
    hue = alt.Color("hue:N", scale=None)
    layers += [beside.encode(*axes, text="text:N"), above.encode(*axes, text="text:N", color=hue)]
    # With independent colour scales, only the weights have a legend.
    return layered(*layers).resolve_scale(color="independent").properties(width=width, height=height)


MAX_ARCS = 600
"""Largest number of arcs; the weakest beyond it are left out."""

ARCS_LEAST = 5 / 253
"""Weakest arc that is drawn, as a fraction of the scale; the same as in the browser."""

WIDTH, PITCH, TALLEST = 300, 26, 760
"""CSS pixels: the width, the distance between tokens, and the largest height."""

_CURVE = np.linspace(0.0, 1.0, 17)


def attention_arcs(
    reading: Reading, *, layer: int, heads: Sequence[int], before: Reading | None = None, scale: str = "fixed"
) -> alt.TopLevelMixin:
    """Draw the attention weights of some heads of a layer as arcs in the hue of the head; larger weights are thicker.

    Beyond `MAX_ARCS` arcs, the weakest are left out. With `before`, both runs are drawn side by side on one scale.

    Args:
        reading: The run.
        layer: The layer, from 0.
        heads: The heads, from 0.
        before: The original run, to compare with.
        scale: A scale of `viz.attention`: "fixed", "own", "log" or "without_first_token".

    Returns:
        The chart; `viz.save` writes it to a file.

    Raises:
        EditError: The run has no such layer, or the layer no such head.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_arcs(reading, layer=2, heads=[1])
    """
    check_option("scale", scale, SCALES)
    runs = [pattern_layers(one) for one in (before, reading) if one is not None]
    if not 0 <= layer < len(runs[0]):
        raise EditError(f"The attention layers are 0 to {len(runs[0]) - 1}, got {layer}.")
    layers = [run[layer] for run in runs]
    if wrong := [head for head in heads if not 0 <= head < layers[0].shape[0]]:
        raise EditError(f"{layers[0].name} has heads 0 to {layers[0].shape[0] - 1}, got {wrong[0]}.")
    blocks = [np.stack([exact_weights(one, head) for head in heads]) for one in layers]  # [head, query, key] each
    exact = [np.where(np.isinf(block), np.nan, block) for block in blocks]
    titles = [""] if before is None else [", original", ", changed"]
    shares = [share_of(weights, exact, scale) for weights in exact]
    charts = [_arcs(*one, heads=heads) for one in zip(layers, shares, titles, strict=True)]
    return charts[0] if before is None else alt.hconcat(*charts, spacing=40)


def _arcs(layer: AnyLayer, shares: Weights, title: str, *, heads: Sequence[int]) -> Chart:
    """Draw the arcs of one run, the largest weights last so that they lie on top."""
    _, n_query, n_key = layer.shape
    height = min(TALLEST, max(150, PITCH * max(n_query, n_key)))
    rows = []
    names = [f"head {head + 1}" for head in heads]
    for index, query, key in np.argwhere(np.nan_to_num(shares) >= ARCS_LEAST).tolist():
        rows.append((shares[index, query, key], names[index], (query + 0.5) / n_query, (key + 0.5) / n_key))
    table = pd.DataFrame(sorted(rows)[-MAX_ARCS:], columns=["share", "head", "start", "end"])
    thickest = min(2.7, 0.6 * height / max(n_query, n_key))
    share = table["share"]
    table = table.assign(arc=table.index, opacity=0.04 + 0.9 * share**0.85, width=0.5 + thickest * share)
    table = table.merge(pd.DataFrame({"x": _CURVE}), how="cross")
    table["y"] = table["start"] + (table["end"] - table["start"]) * table["x"] ** 2 * (3 - 2 * table["x"])
    axes, ink, legend = pixel_axes(1, 1), TEXT, alt.Legend(orient="top")
    arcs = alt.Chart(inline(table)).mark_line(interpolate="monotone", clip=False)
    arcs = arcs.encode(
        *axes,
        order="x:Q",
        detail="arc:N",
        color=category_colours("head:N", names, [head_hue(head) for head in heads], title=None, legend=legend),
        opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
    )
    words = []  # the tokens on each side, as many as fit, below their heading
    for x, what, labels in ((0, "query", layer.query_labels), (1, "key", layer.key_labels)):
        every = -int(-13 * len(labels) // height)
        texts = [f"{i} · {visible(text)}" for i, text in enumerate(labels)]
        rows = [{"x": x, "y": (i + 0.5) / len(labels), "text": texts[i]} for i in range(0, len(labels), every)]
        data = pd.DataFrame([*rows, {"x": x, "y": -14 / height, "text": what}])
        mark = alt.Chart(data).mark_text(align="left" if x else "right", dx=16 * x - 8, color=ink, clip=False)
        words.append(mark.encode(*axes, text="text:N"))
    return layered(arcs, *words, title=f"{layer.title}{title}", width=WIDTH, height=height)
