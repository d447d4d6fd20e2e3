"""Draw embeddings: vectors and their cosines, the vocabulary, Fourier components of number embeddings, and text similarity."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from xformer.analysis.embeddings import cosines as cosines_table
from xformer.analysis.embeddings import neighbours
from xformer.analysis.embeddings import projection as projection_table
from xformer.analysis.embeddings import vectors as vectors_table
from xformer.analysis.number_waves import circle as circle_table
from xformer.analysis.number_waves import spectrum as spectrum_table
from xformer.analysis.text_similarity import TextPooling
from xformer.analysis.text_similarity import similarity as similarity_table
from xformer.arguments import Count
from xformer.errors import InputError
from xformer.formatting import check_option, percent
from xformer.installed import needed
from xformer.reading import Readable, Reading
from xformer.viz import theme
from xformer.viz.charts import (
    PADDED,
    ROWS,
    Chart,
    category_colours,
    cell_colours,
    cell_number,
    heat_colour,
    label_layers,
    layered,
    numbered,
    numbers,
    place_labels,
    squares,
    tooltips,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go


MAX_CELLS = 5000
"""Largest number of cells of one heatmap: beyond it, browsers slow down and Altair raises an error in notebooks."""


def column_stride(n_rows: int, n_columns: int) -> int:
    """Return the column stride that keeps a heatmap within `MAX_CELLS`: all columns (1), every 2nd (2), …"""
    return max(1, math.ceil(n_columns / max(1, MAX_CELLS // max(1, n_rows))))


def rows_height(n_rows: int, most: int = 300) -> int:
    """Return the height of a heatmap: rows of 4 to 34 pixels that fill at most `most` if they fit."""
    return round(n_rows * max(4.0, min(34.0, most / max(1, n_rows))))


def vector_heatmap(
    table: pd.DataFrame,
    *,
    limit: float | None = None,
    rows: str = "position · token",
    columns: str = "dimension of the vector",
    height: int = 300,
    legend: bool = True,
) -> alt.Chart:
    """Draw vectors as rows [position × dimension], orange below zero and blue above, on a scale from −`limit` to `limit`.

    `table` has the columns position, token, dimension and value (`vector_table`). Beyond `MAX_CELLS` cells, only every 2nd,
    3rd, … column is drawn (see `column_stride`).
    """
    limit = theme.signed_limit(table["value"].to_numpy()) if limit is None else limit
    n_rows, n_columns = len(set(table["position"])), len(set(table["dimension"]))
    table = table.query(f"dimension % {column_stride(n_rows, n_columns)} == 0")
    names = numbered(table)
    token = ["token:N"] if any(table["token"]) else []
    chart = alt.Chart(table.assign(row=names), height=rows_height(n_rows, height), autosize=ROWS).mark_rect()
    return chart.encode(
        x=alt.X("dimension:O", title=columns, axis=_sparse()),
        y=alt.Y("row:N", title=rows, sort=list(dict.fromkeys(names)), axis=_sparse()),
        color=_signed("value:Q", limit, "value", legend),
        tooltip=tooltips("position:O", *token, "dimension:O", ("value:Q", "", ".7g")),
    )


def vectors(
    reading: Reading, *, part: str = "tokens", stack: str | None = None, positions: Sequence[int] | None = None
) -> alt.Chart:
    """Draw the vectors of `analysis.vectors`, one row per position, on a colour scale centred on zero.

    The arguments are those of `analysis.vectors`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.vectors(reading)
    """
    return vector_heatmap(vectors_table(reading, part=part, stack=stack, positions=positions))


def cosines(
    reading: Reading,
    *,
    part: str = "tokens",
    stack: str | None = None,
    positions: Sequence[int] | None = None,
    height: Count = 330,
    legend: bool = True,
) -> alt.Chart:
    """Draw the cosine similarity of every pair of vectors, on a fixed scale from −1 (orange) to 1 (blue).

    Unless `positions` are given, long inputs are thinned to every 2nd, 3rd, … position, for at most `MAX_CELLS` pairs.

    Further arguments are those of `analysis.cosines`.

    Args:
        height: The height of the matrix in pixels; cells are squares.
        legend: Whether to draw a legend.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.cosines(reading)
    """
    if positions is None:
        n = len(reading.tokens_of(stack))
        positions = range(0, n, -(-n // math.isqrt(MAX_CELLS)))
    table = cosines_table(reading, part=part, stack=stack, positions=positions)
    labelled = table.assign(
        one=table["position"].astype(str) + " " + table["token"],
        other=table["other_position"].astype(str) + " " + table["other_token"],
    )
    order = list(dict.fromkeys(labelled["one"]))
    size: dict[str, Any] = dict(squares(len(order), len(order), 34, height))
    return (
        alt.Chart(labelled, **size, autosize=PADDED)
        .mark_rect()
        .encode(
            x=alt.X("other:N", title=None, sort=order, axis=_sparse(-90)),
            y=alt.Y("one:N", title="position · token", sort=order, axis=_sparse()),
            color=_signed("cosine:Q", 1.0, "cosine", legend),
            tooltip=tooltips(("one:N", "token"), ("other:N", "other token"), ("cosine:Q", "", ".7f")),
        )
    )


def _signed(field: str, limit: float, title: str, legend: bool) -> alt.Color:
    look = alt.Legend(gradientLength=130, format=".2~g") if legend else None
    return heat_colour(field, theme.DIVERGING, -limit, limit, title=title, legend=look)


def _sparse(angle: int = 0) -> alt.Axis:
    """An axis that drops labels that would overlap."""
    return alt.Axis(labelAngle=angle, labelOverlap="parity", ticks=False, domain=False, labelLimit=90)


WIDTH_OF_POINTS = 400
"""Pixels between the outermost points of a projection in a typical window, for which labels are placed."""

MAX_POINTS_DRAWN = 2_000
"""Largest number of tokens of a vocabulary that are drawn, apart from those of the input and the neighbours of `near`."""

HEIGHT_IN_PLANE, HEIGHT_IN_SPACE = 430, 480


def projection(reading: Reading, *, axes: int = 2, stack: str | None = None, token: int | None = None) -> Any:
    """Draw the token embeddings along their first two principal components (Altair), or three, rotated with the mouse (Plotly).

    The tokens of the input are larger and in colour. In the plane, `near` has a ring, and clicking a point sets the selection
    "point" to its token. Of vocabularies with more than `MAX_POINTS_DRAWN` tokens, the tokens of the input, `near`, its
    neighbours and an even selection of the others are drawn.

    Further arguments are those of `analysis.projection`.

    Args:
        axes: 2 for a plane, 3 for space.
        token: The id of the token with a ring.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.projection(reading)
    """
    check_option("axes", axes, (2, 3))
    table = projection_table(reading, stack=stack)
    shares = [percent(share, 1) for share in table.attrs["explained"]]
    table = table.assign(shown=table["positions"] != "")
    if len(table) > MAX_POINTS_DRAWN:
        beside = [] if token is None else [token, *neighbours(reading, token=token, stack=stack)["id"]]
        drawn = table.index.isin([*beside, *np.linspace(0, len(table) - 1, MAX_POINTS_DRAWN).astype(int)])
        table = table[drawn | table["shown"]].assign(named=lambda one: one["shown"] | one["id"].isin(beside))
    return _in_space(table, shares) if axes == 3 else _in_the_plane(table, shares, token)


def _in_the_plane(table: pd.DataFrame, shares: Sequence[str], near: int | None) -> Chart:
    x = alt.X("pc1:Q", title=f"PC1 ({shares[0]} of the variance)", scale=alt.Scale(padding=22))
    y = alt.Y("pc2:Q", title=f"PC2 ({shares[1]} of the variance)", scale=alt.Scale(padding=16))
    tooltip = tooltips("token:N", ("positions:N", "positions in the input"))
    tooltip += tooltips(("pc1:Q", "PC1", ".7g"), ("pc2:Q", "PC2", ".7g"))
    quiet, loud = theme.PART_HUES["tokens"], theme.PRIMARY
    is_large, where = "named" in table, table[["pc1", "pc2"]]
    named = table.loc[table["named"]].sort_values("shown", ascending=False) if is_large else table
    part = np.ptp(named[["pc1", "pc2"]].to_numpy(), axis=0) / np.maximum(np.ptp(where.to_numpy(), axis=0), 1e-9)
    sides = pd.Series("", index=table.index)
    room: dict[str, Any] = {"width": WIDTH_OF_POINTS * part[0], "height": (HEIGHT_IN_PLANE - 100) * part[1]}
    look: dict[str, Any] = {"size": 15, "gap": 9} if is_large else {"first": named["shown"].tolist()}
    sides[named.index] = place_labels(named[["pc1", "pc2"]].to_numpy(), named["token"].tolist(), **room, **look)
    base = alt.Chart(table.assign(side=sides)).encode(x=x, y=y, tooltip=tooltip)
    rest, marked = base.transform_filter("!datum.shown"), base.transform_filter("datum.shown")
    click = alt.selection_point(name="point", fields=["token"], on="click", clear=False)
    ring = base.transform_filter(alt.datum.id == (-1 if near is None else near))
    hit = base.mark_circle(size=500, opacity=0).add_params(click)  # a large target for touch screens
    return layered(
        ring.mark_point(size=420, strokeWidth=2, color=theme.PART_HUES["positions"]),
        rest.mark_circle(size=14 if is_large else 45, color=quiet, opacity=0.55),
        *label_layers(rest, "token:N", color=quiet),
        marked.mark_circle(size=150, color=loud, opacity=1),
        *label_layers(marked, "token:N", size=15, gap=9, fontWeight="bold", color=theme.TEXT),
        hit,
        height=HEIGHT_IN_PLANE,
    )


def _in_space(table: pd.DataFrame, shares: Sequence[str]) -> go.Figure:
    quiet, loud = theme.PART_HUES["tokens"], theme.PRIMARY
    with needed("plotly", "The vocabulary in space"):
        import plotly.graph_objects as go
    figure = go.Figure()
    groups = ((False, "rest of the vocabulary", quiet, 4, 11), (True, "in the input", loud, 8, 16))
    for shown, name, colour, size, font in groups:
        part = table[table["shown"] == shown]
        figure.add_scatter3d(
            x=np.asarray(part["pc1"]),
            y=np.asarray(part["pc2"]),
            z=np.asarray(part["pc3"]),
            mode="markers+text" if shown or len(table) <= MAX_POINTS_DRAWN else "markers",
            name=name,
            text=np.array([html.escape(token) for token in part["token"]]),
            customdata=np.asarray(part[["positions"]]),
            textfont={"size": font, "color": theme.TEXT if shown else quiet},
            textposition="top center",
            marker={"size": size, "color": colour, "opacity": 1.0 if shown else 0.6},
            hovertemplate="token %{text}<br>positions in the input: %{customdata[0]}<br>"
            "PC1 %{x:.7g}<br>PC2 %{y:.7g}<br>PC3 %{z:.7g}<extra></extra>",
        )
    line = theme.paired("#667085", "#9aa3b5")
    margin, legend = {"l": 0, "r": 0, "t": 0, "b": 0}, {"orientation": "h", "y": 1.0, "x": 0.0}
    figure.update_layout(height=HEIGHT_IN_SPACE, margin=margin, legend=legend)
    look = {"showbackground": False, "gridcolor": "rgba(128,128,128,0.35)", "zerolinecolor": line, "color": line}
    layout: Any = figure.layout
    for axis, index in (("x", 1), ("y", 2), ("z", 3)):
        layout.scene[f"{axis}axis"].update(look, title={"text": f"PC{index} ({shares[index - 1]})"})
    camera = {"eye": {"x": 1.5, "y": 1.5, "z": 0.9}, "center": {"x": 0, "y": 0, "z": -0.12}}
    figure.update_scenes(aspectmode="cube", camera=camera)
    return figure


HEIGHT_OF_SPECTRUM, SIDE_OF_CIRCLE = 300, 330
MAX_TICKS = 15
"""Largest number of tick labels of an axis."""


def spectrum(reading: Reading, *, stack: str | None = None, chosen: int | None = None) -> Chart:
    """Draw `analysis.spectrum`: the share of the variance at each frequency, with the maximum over shuffles as a dashed line.

    Further arguments are those of `analysis.spectrum`.

    Args:
        chosen: The frequency to frame.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> chart = xformer.viz.spectrum(modular)
    """
    table = spectrum_table(reading, stack=stack)
    quiet, loud = theme.PART_HUES["tokens"], theme.PRIMARY
    every = -(-len(table) // MAX_TICKS)
    axis = alt.Axis(labelAngle=0, values=[k for k in table["frequency"].tolist() if (k - 1) % every == 0])
    x = alt.X("frequency:O", title="frequency: cycles over all numbers", axis=axis)
    hover = tooltips("frequency:O", ("period:Q", "period, in numbers", ".4~g"), ("share:Q", "", ".4%"))
    base = alt.Chart(table).encode(x=x, tooltip=[*hover, *tooltips(("chance:Q", "maximum by chance", ".4%"))])
    y = alt.Y("share:Q", title="share of the variance", axis=alt.Axis(format="%"))
    line = alt.Chart(table.head(1)).encode(y="chance:Q")
    note = line.mark_text(align="right", baseline="bottom", dy=-3, color=theme.TEXT, fontSize=12)
    layers = [
        base.mark_bar().encode(y=y, color=alt.condition("datum.above_chance", alt.value(loud), alt.value(quiet))),
        line.mark_rule(strokeDash=[5, 4], color=theme.TEXT),
        note.encode(x=alt.value("width"), text=alt.value("maximum by chance")),
    ]
    if chosen is not None:
        framed = base.transform_filter(alt.datum.frequency == chosen)
        layers.append(framed.mark_bar(filled=False, stroke=theme.TEXT, strokeWidth=2).encode(y=y))
    return layered(*layers, height=HEIGHT_OF_SPECTRUM)


def circle(reading: Reading, *, frequency: int, stack: str | None = None) -> Chart:
    """Draw the numbers of `analysis.circle` in the plane of a frequency, a square.

    The arguments are those of `analysis.circle`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> chart = xformer.viz.circle(modular, frequency=4)
    """
    table = circle_table(reading, frequency=frequency, stack=stack)
    x, y = "cosine_axis", "sine_axis"
    points = table[[x, y]].to_numpy()
    limit = 1.18 * max(abs(points).max().item(), 1e-12)
    scale = alt.Scale(domain=[-limit, limit], nice=False)
    inside = SIDE_OF_CIRCLE * float(max(points.max(axis=0) - points.min(axis=0))) / (2 * limit)
    sides = place_labels(points, table["number"].tolist(), width=inside, height=inside)
    base = alt.Chart(table.assign(side=sides)).encode(
        x=alt.X(f"{x}:Q", title=f"cosine component, frequency {frequency}", scale=scale),
        y=alt.Y(f"{y}:Q", title=f"sine component, frequency {frequency}", scale=scale),
        tooltip=tooltips("number:N", ("radius:Q", "radius", ".4g"), ("phase:Q", "phase (cycles)", ".3f")),
    )
    dots = base.mark_circle(size=50, color=theme.PRIMARY, opacity=0.8)
    names = label_layers(base, "number:N", color=theme.TEXT)
    return layered(dots, *names, width=SIDE_OF_CIRCLE, height=SIDE_OF_CIRCLE)


MAX_NUMBERED = 8
"""Largest number of texts at which the cells still have room for their numbers."""
_ROW = 36
"""Pixels of a row of the heatmap."""


def similarity(
    model: Readable | Reading,
    texts: Sequence[str],
    *,
    what: Literal["map", "layers"] = "map",
    layer: int | None = None,
    pooling: TextPooling | None = None,
    tokenizer: Any = None,
) -> Chart:
    """Draw `analysis.similarity`: the cosines of texts at one layer as a heatmap from −1 to 1.

    With what="layers", each pair of texts has a line over the layers instead, with a larger point at `layer`.

    Further arguments are those of `analysis.similarity`.

    Args:
        what: "map" at one layer, or "layers".
        layer: The layer: 0 is the embedding, and the last one the default.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.similarity("checkpoints/characters", ["import os", "import sys", "return None"])
    """
    check_option("what", what, ("map", "layers"))
    table = similarity_table(model, texts, pooling=pooling, tokenizer=tokenizer)
    layers = sorted(set(table["layer"]))
    shown = layers[-1] if layer is None else layer
    if shown not in layers:
        raise InputError(f"The model has layers {layers[0]} to {layers[-1]}, got {layer}.")
    if what == "layers":
        return _lines(table, shown)
    return _heat_map(table.loc[table["layer"] == shown], texts)


def _heat_map(table: pd.DataFrame, texts: Sequence[str]) -> Chart:
    rows = [f"{number} · {text}" for number, text in enumerate(texts, 1)]
    columns = [str(number) for number in range(1, len(texts) + 1)]
    data = table.assign(
        one=[rows[first] for first in table["first"]],
        other=[columns[second] for second in table["second"]],
        other_text=[rows[second] for second in table["second"]],
        shown=[cell_number(value) for value in table["cosine"]],
        cell_colour=cell_colours(theme.DIVERGING, table["cosine"], -1, 1),
    )
    has_room = len(texts) <= MAX_NUMBERED
    axis = {"ticks": False, "domain": False, "title": None}
    legend = None if has_room else alt.Legend(title="cosine", gradientLength=120, format=".2~g")
    base = alt.Chart(data).encode(
        alt.X("other:N", sort=columns, axis=alt.Axis(orient="top", labelAngle=0, labelOverlap="parity", **axis)),
        alt.Y("one:N", sort=rows, axis=alt.Axis(labelLimit=150, labelOverlap="parity", **axis)),
        tooltip=tooltips(("one:N", "text"), ("other_text:N", "other text"), ("cosine:Q", "", ".6f")),
    )
    cells = base.mark_rect().encode(heat_colour("cosine:Q", theme.DIVERGING, -1.0, 1.0, legend=legend))
    text = numbers(base, "shown:N", shown=has_room, size=12 if len(texts) <= 5 else 10)
    return layered(cells, *text, height=max(4, min(_ROW, 600 // len(texts))) * len(texts), autosize=ROWS)


def _lines(table: pd.DataFrame, layer: int) -> Chart:
    data = table.loc[table["first"] < table["second"]]
    pairs = [f"{first + 1}, {second + 1}" for first, second in zip(data["first"], data["second"], strict=True)]
    data = data.assign(pair=pairs, is_shown=data["layer"] == layer)
    order = list(dict.fromkeys(pairs))
    x = alt.X("layer:O", title="after layer (0: embedding)", axis=alt.Axis(labelAngle=0, labelOverlap="parity"))
    y = alt.Y("cosine:Q", title="cosine", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    look = {"sort": order, "title": "texts", "legend": alt.Legend(orient="top", columns=3)}
    colour = category_colours("pair:N", order, theme.head_hues(len(order)), **look)
    tooltip = tooltips(("pair:N", "texts"), "layer:O", ("cosine:Q", "", ".6f"))
    base = alt.Chart(data).encode(x, y, colour, tooltip=tooltip)
    marked = base.transform_filter(alt.datum.is_shown).mark_point(filled=True, size=110, opacity=1)
    return layered(base.mark_line(point=True), marked, height=240)
