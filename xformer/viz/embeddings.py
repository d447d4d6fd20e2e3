"""Draw embeddings: the vectors of an input and their cosines as heatmaps, and the vocabulary along its principal axes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd

from xformer.analysis.embeddings import cosines as cosines_table
from xformer.analysis.embeddings import neighbours
from xformer.analysis.embeddings import projection as projection_table
from xformer.analysis.embeddings import vectors as vectors_table
from xformer.formatting import percent
from xformer.installed import needed
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import label_layers, layered, place_labels

if TYPE_CHECKING:
    import plotly.graph_objects as go


MOST_CELLS = 5000
"""What one Altair heatmap draws: beyond it a browser slows down, and Altair in a notebook refuses."""


def every(n_rows: int, n_columns: int) -> int:
    """Which columns a heatmap draws, so that it has at most `MOST_CELLS`: all of them (1), every 2nd (2), …"""
    return max(1, math.ceil(n_columns / max(1, MOST_CELLS // max(1, n_rows))))


def rows_height(n_rows: int, most: int = 300, around: int = 70) -> int:
    """Pixels for a heatmap with its axes (`around`): rows of up to 34 pixels, all of them in `most` where they fit."""
    return round(n_rows * max(4.0, min(34.0, most / max(1, n_rows)))) + around


def vector_heatmap(
    table: pd.DataFrame,
    *,
    dark: bool,
    limit: float | None = None,
    rows: str = "position · token",
    columns: str = "dimension of the vector",
    height: int = 300,
    legend: bool = True,
) -> alt.Chart:
    """Vectors as rows [position × dimension], orange below zero and blue above, ±`limit` at the ends of the scale.

    `table` has position, token, dimension, value (`vector_table`). Of more than `MOST_CELLS` every 2nd, 3rd, … column is
    drawn (see `every`).
    """
    limit = theme.signed_limit(table["value"].to_numpy()) if limit is None else limit
    n_rows, n_columns = len(set(table["position"])), len(set(table["dimension"]))
    table = table.query(f"dimension % {every(n_rows, n_columns)} == 0")
    labelled = table.assign(
        row=[f"{p} · {t}" if t else str(p) for p, t in zip(table["position"], table["token"], strict=True)]
    )
    return (
        alt.Chart(labelled, height=rows_height(n_rows, height))
        .mark_rect()
        .encode(
            x=alt.X("dimension:O", title=columns, axis=_sparse()),
            y=alt.Y("row:N", title=rows, sort=list(dict.fromkeys(labelled["row"])), axis=_sparse()),
            color=_signed("value:Q", limit, dark, "value", legend),
            tooltip=[
                "position:O",
                *(["token:N"] if any(labelled["token"]) else []),
                "dimension:O",
                alt.Tooltip("value:Q", format=".7g"),
            ],
        )
    )


def vectors(
    reading: Reading,
    *,
    part: str = "tokens",
    stack: str | None = None,
    positions: Sequence[int] | None = None,
    limit: float | None = None,
    dark: bool = False,
) -> alt.Chart:
    """The numbers of `analysis.vectors`, a row a position; colours run from −`limit` to `limit`, or to the largest.

    Args:
        reading: The run.
        part: "tokens", "positions" or "sum".
        stack: "encoder" or "decoder", where a model has both.
        positions: The positions, from 0; all of them by default.
        limit: Where the colours end; at the largest value by default.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.vectors(reading)
    """
    table = vectors_table(reading, part=part, stack=stack, positions=positions)
    return vector_heatmap(table, limit=limit, dark=dark)


def cosines(
    reading: Reading,
    *,
    part: str = "tokens",
    stack: str | None = None,
    positions: Sequence[int] | None = None,
    dark: bool = False,
) -> alt.Chart:
    """The cosine of every two of the same vectors, always from −1 (orange) to 1 (blue).

    Unless `positions` are given, every 2nd, 3rd, … position is drawn, so that there are at most `MOST_CELLS` pairs.

    Args:
        reading: The run.
        part: "tokens", "positions" or "sum".
        stack: "encoder" or "decoder", where a model has both.
        positions: The positions, from 0; all of them by default.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.cosines(reading)
    """
    if positions is None:
        n = len(reading.tokens_of(stack))
        positions = range(0, n, -(-n // math.isqrt(MOST_CELLS)))
    table = cosines_table(reading, part=part, stack=stack, positions=positions)
    labelled = table.assign(
        one=[f"{p} · {t}" for p, t in zip(table["position"], table["token"], strict=True)],
        other=[f"{p} · {t}" for p, t in zip(table["other_position"], table["other_token"], strict=True)],
    )
    order = list(dict.fromkeys(labelled["one"]))
    return (
        alt.Chart(labelled, height=rows_height(len(order), around=100))
        .mark_rect()
        .encode(
            x=alt.X("other:N", title="position · token", sort=order, axis=_sparse(-90)),
            y=alt.Y("one:N", title="position · token", sort=order, axis=_sparse()),
            color=_signed("cosine:Q", 1.0, dark, "cosine", True),
            tooltip=[
                alt.Tooltip("one:N", title="token"),
                alt.Tooltip("other:N", title="other token"),
                alt.Tooltip("cosine:Q", format=".7f"),
            ],
        )
    )


def _signed(field: str, limit: float, dark: bool, title: str, legend: bool) -> alt.Color:
    scale = alt.Scale(**theme.vega_scale(theme.diverging(dark), -limit, limit))
    return alt.Color(
        field, title=title, scale=scale, legend=alt.Legend(gradientLength=130, format=".2~g") if legend else None
    )


def _sparse(angle: int = 0) -> alt.Axis:
    """Labels that make way for each other instead of overlapping."""
    return alt.Axis(labelAngle=angle, labelOverlap="parity", ticks=False, domain=False, labelLimit=90)


WIDTH_OF_POINTS = 400
"""Pixels between the outermost points of a projection in a window of usual width: what its labels have to share."""

MOST_POINTS_DRAWN = 2_000
"""The most points of a vocabulary that are drawn, besides the requested tokens."""

HEIGHT_IN_PLANE, HEIGHT_IN_SPACE = 430, 480


def projection(
    reading: Reading, *, axes: int = 2, stack: str | None = None, near: int | None = None, dark: bool = False
) -> Any:
    """The vocabulary along its first two principal axes, or along three, to be turned with the mouse (in Plotly).

    The tokens of the input are larger and in colour. In the plane the token `near` has a ring, and a click on a point is the
    selection "point", with the token. Of more than `MOST_POINTS_DRAWN` tokens those are drawn that the input has, `near` and
    its neighbours, and others evenly apart by their numbers.

    Args:
        reading: The run.
        axes: 2 for a plane, 3 for space.
        stack: "encoder" or "decoder", where a model has both.
        near: The token with a ring, by its id.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.projection(reading)
    """
    table = projection_table(reading, stack=stack)
    shares = [percent(share, 1) for share in table.attrs["explained"]]
    table = table.assign(shown=table["positions"] != "")
    if len(table) > MOST_POINTS_DRAWN:
        beside = [] if near is None else [near, *neighbours(reading, token=near, stack=stack)["id"]]
        drawn = table.index.isin([*beside, *np.linspace(0, len(table) - 1, MOST_POINTS_DRAWN).astype(int)])
        table = table[drawn | table["shown"]].assign(named=lambda one: one["shown"] | one["id"].isin(beside))
    return _in_space(table, shares, dark) if axes == 3 else _in_the_plane(table, shares, near, dark)


def _in_the_plane(
    table: pd.DataFrame, shares: Sequence[str], near: int | None, dark: bool
) -> alt.LayerChart | alt.FacetChart:
    x = alt.X("pc1:Q", title=f"PC1 ({shares[0]} of the variance)", scale=alt.Scale(padding=22))
    y = alt.Y("pc2:Q", title=f"PC2 ({shares[1]} of the variance)", scale=alt.Scale(padding=16))
    tooltip = [
        "token:N",
        alt.Tooltip("positions:N", title="in the input at"),
        alt.Tooltip("pc1:Q", title="PC1", format=".7g"),
        alt.Tooltip("pc2:Q", title="PC2", format=".7g"),
    ]
    quiet, loud = theme.pick(theme.PART_HUES["tokens"], dark), theme.pick(theme.PRIMARY, dark)
    named = table.loc[table["named"]] if "named" in table else table
    sides = pd.Series("", index=table.index)
    sides[named.index] = place_labels(
        named[["pc1", "pc2"]].to_numpy(),
        named["token"].tolist(),
        first=named["shown"].tolist(),
        width=WIDTH_OF_POINTS,
        height=HEIGHT_IN_PLANE - 100,
    )
    base = alt.Chart(table.assign(side=sides)).encode(x=x, y=y, tooltip=tooltip)
    rest, marked = base.transform_filter("!datum.shown"), base.transform_filter("datum.shown")
    click = alt.selection_point(name="point", fields=["token"], on="click", clear=False)
    ring = base.transform_filter(alt.datum.id == (-1 if near is None else near))
    hit = base.mark_circle(size=500, opacity=0).add_params(click)  # a finger's width to aim at
    bold = {"size": 15, "gap": 9, "fontWeight": "bold", "color": theme.pick(theme.TEXT, dark)}
    return layered(
        ring.mark_point(size=420, strokeWidth=2, color=theme.pick(theme.PART_HUES["positions"], dark)),
        rest.mark_circle(size=45 if "named" not in table else 14, color=quiet, opacity=0.55),
        *label_layers(rest, "token:N", color=quiet),
        marked.mark_circle(size=150, color=loud, opacity=1),
        *label_layers(marked, "token:N", **bold),
        hit,
        height=HEIGHT_IN_PLANE,
    )


def _in_space(table: pd.DataFrame, shares: Sequence[str], dark: bool) -> go.Figure:
    quiet, loud = theme.pick(theme.PART_HUES["tokens"], dark), theme.pick(theme.PRIMARY, dark)
    with needed("plotly", "The vocabulary in space"):
        import plotly.graph_objects as go
    figure = go.Figure()
    for shown, name, colour, size, font in (
        (False, "rest of the vocabulary", quiet, 4, 11),
        (True, "in the input", loud, 8, 16),
    ):
        part = table[table["shown"] == shown]
        figure.add_scatter3d(
            x=np.asarray(part["pc1"]),
            y=np.asarray(part["pc2"]),
            z=np.asarray(part["pc3"]),
            mode="markers+text" if shown or len(table) <= MOST_POINTS_DRAWN else "markers",
            name=name,
            text=np.array([html.escape(token) for token in part["token"]]),
            customdata=np.asarray(part[["positions"]]),
            textfont={"size": font, "color": theme.pick(theme.TEXT, dark) if shown else quiet},
            textposition="top center",
            marker={"size": size, "color": colour, "opacity": 1.0 if shown else 0.6},
            hovertemplate="token %{text}<br>in the input at %{customdata[0]}<br>"
            "PC1 %{x:.7g}<br>PC2 %{y:.7g}<br>PC3 %{z:.7g}<extra></extra>",
        )
    line = "#9aa3b5" if dark else "#667085"
    figure.update_layout(
        height=HEIGHT_IN_SPACE,
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        legend={"orientation": "h", "y": 1.0, "x": 0.0},
        scene={
            f"{axis}axis": {
                "title": {"text": f"PC{index} ({shares[index - 1]})"},
                "showbackground": False,
                "gridcolor": "rgba(128,128,128,0.35)",
                "zerolinecolor": line,
                "color": line,
            }
            for index, axis in enumerate("xyz", start=1)
        },
    )
    figure.update_scenes(
        aspectmode="cube", camera={"eye": {"x": 1.5, "y": 1.5, "z": 0.9}, "center": {"x": 0, "y": 0, "z": -0.12}}
    )
    return figure
