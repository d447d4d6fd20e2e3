"""Helpers shared by the charts: layers over one table, colour scales, tooltips, token lanes, thumbnails and labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from xformer.analysis.attention_patterns import check_alike
from xformer.layer_path import head_title
from xformer.reading import Reading
from xformer.viz import theme

Chart = alt.LayerChart | alt.FacetChart
"""What `altair.layer` returns."""


def layered(*charts: Any, **properties: Any) -> Chart:
    """Layer charts as `altair.layer` does, three times as fast if all share one table, which Altair would serialise per layer.

    Args:
        charts: The layers, from back to front.
        properties: Properties of the layered chart, such as its height and title.
    """
    data = charts[0].data
    if data is alt.Undefined or any(chart.data is not data for chart in charts):
        return alt.layer(*charts, **properties)
    bare = [chart.copy(deep=False) for chart in charts]
    for chart in bare:
        chart.data = alt.Undefined
    return alt.layer(*bare, data=data, **properties)


def cell_colours(stops: Sequence[str], values: ArrayLike, low: float, high: float) -> list[str]:
    """Return the nearest stop of the colour of each cell of a heatmap.

    Args:
        stops: The colours of the scale, from `low` to `high`.
        values: The values of the cells; those outside the scale are clamped, and NaN counts as the middle.
        low: The start of the scale.
        high: The end of the scale.
    """
    share = np.nan_to_num((np.asarray(values, dtype=float) - low) / (high - low), nan=0.5, posinf=1, neginf=0)
    return [stops[int(place)] for place in np.rint(np.clip(share, 0, 1) * (len(stops) - 1))]


_ON_CELL = [f"contrast(datum.cell_colour, '{text}')" for text in ("#ffffff", theme.TEXT)]
TEXT_COLOUR = alt.expr(f"{_ON_CELL[0]} > {_ON_CELL[1]} ? '#ffffff' : '{theme.TEXT}'")
"""White or black, whichever has more contrast on the column `cell_colour` (see `cell_colours`), in both themes."""


def cell_number(value: float, digits: int = 2) -> str:
    """Format a number for a cell, with a true minus sign and no −0."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def numbers(base: alt.Chart, text: str | alt.Text, *, shown: bool = True, size: float = 11, **look: Any) -> list[Any]:
    """Write the text of a heatmap into its cells, if it is `shown`, in `TEXT_COLOUR`."""
    return [base.mark_text(fontSize=size, color=TEXT_COLOUR, **look).encode(text=text)] if shown else []


def inline(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the rows of a table as inline data. Streamlit sends tables as Arrow, from which Vega cannot read lists."""
    return {"values": json.loads(str(frame.round(4).to_json(orient="records")))}


OF_THE_MODEL = {
    "accuracy_by_length", "circle", "filter_components", "model_diagram", "patch_cosines", "patch_filters", "position_curves",
    "position_offsets", "position_values", "similarity", "spectrum",
}  # fmt: skip
"""Charts that do not depend on the input of their reading."""


def drawn(draw: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw a chart of readings. If one of them has several inputs, the title says that the first is shown.

    Raises `InputError` if the original run `before` does not fit the reading.
    """
    given = [*args, *kwargs.values()]
    runs = [
        run for one in given for run in (one if isinstance(one, list | tuple) else [one]) if isinstance(run, Reading)
    ]
    if runs:
        check_alike(runs[0], kwargs.get("before"))
    chart: Any = draw(*args, **kwargs)
    n = max((run.batch_size for run in runs), default=1)
    if n == 1 or draw.__name__ in OF_THE_MODEL:
        return chart
    note = f"input 1 of {n}; reading.one(1) selects the next"
    if hasattr(chart, "update_layout"):  # a figure of Plotly
        return chart.update_layout(title=note)
    if chart.title in (alt.Undefined, ""):
        return chart.properties(title=alt.TitleParams(text=note, fontWeight="normal"))
    title = chart.title.copy() if isinstance(chart.title, alt.TitleParams) else alt.TitleParams(text=chart.title)
    title.subtitle = note
    return chart.properties(title=title)


SIDES = {"above": (0, -1), "right": (1, 0), "below": (0, 1), "left": (-1, 0)}
"""The sides of a point, in the order in which they are tried, with their directions."""

_LETTER, _LINE = 0.62, 1.1  # width of a letter and height of a line, relative to the font size


def head_titles(reading: Reading, table: pd.DataFrame) -> list[str]:
    """Return the display names of the heads in a table with the columns layer and head."""
    pairs = zip(table["layer"], table["head"], strict=True)
    return [head_title(path, head, is_encoder_decoder=reading.is_encoder_decoder) for path, head in pairs]


def numbered(table: pd.DataFrame, position: str = "position") -> list[str]:
    """Return each position with its token, "3 · 12", so that repeated tokens stay distinct, or the position alone."""
    return [f"{at} · {text}" if text else str(at) for at, text in zip(table[position], table["token"], strict=True)]


PADDED = alt.AutoSizeParams(type="pad")
"""Excludes the axes from the width and height, which are then those of the cells."""
ROWS = alt.AutoSizeParams(type="fit-x", contains="padding")
"""Fits the width, axes included, to the place of a chart; the height is that of its rows alone, whatever their labels need."""


def squares(n_rows: int, n_columns: int, largest: int, most: int) -> dict[str, int]:
    """Return the size of a chart with square cells of 6 to `largest` pixels whose longer side is about `most` at most."""
    cell = max(6, min(largest, most // max(n_rows, n_columns)))
    return {"width": cell * n_columns, "height": cell * n_rows}


SMALL_CELL = 50
"""Most pixels of a cell of a matrix that is drawn small, beside others."""
LABEL_WIDTH, LABEL_HEIGHT = 7, 12
"""Pixels that a character of a label needs, and a line of it."""


def small_squares(n_rows: int, n_columns: int, height: int) -> dict[str, int]:
    """Return the size of a matrix beside others, with square cells, whose longer side is `height` pixels at most."""
    cell = min(float(SMALL_CELL), height / max(n_rows, n_columns))
    return {"width": max(20, round(cell * n_columns)), "height": max(20, round(cell * n_rows))}


def matrix_axes(
    x: tuple[str, str, Sequence[str]],
    y: tuple[str, str, Sequence[str]],
    size: dict[str, int],
    *,
    limit: int,
    has_row_labels: bool = True,
) -> tuple[alt.X, alt.Y]:
    """Return the axes of a matrix: keys above it, turned where they have no room, and queries beside it.

    Args:
        x: The field of the keys, the title of the axis, and the keys in order.
        y: The same of the queries.
        size: The size of the matrix in pixels.
        limit: The longest label in pixels.
        has_row_labels: Whether the queries are labelled, as in the first of several matrices beside each other.
    """
    (across, x_title, keys), (down, y_title, queries) = x, y
    wide, high = size["width"] / len(keys), size["height"] / len(queries)
    angle = 0 if LABEL_WIDTH * max(map(len, keys)) < wide else -60
    look = {"labelLimit": limit, "titlePadding": 4, "labelFlush": False}
    key_axis = alt.Axis(orient="top", labelAngle=angle, labelOverlap=wide < LABEL_HEIGHT, **look)
    query_axis = alt.Axis(labelOverlap=high < LABEL_HEIGHT, **look) if has_row_labels else None
    return (
        alt.X(across, sort=list(keys), title=x_title, axis=key_axis),
        alt.Y(down, sort=list(queries), title=y_title, axis=query_axis),
    )


def place_labels(
    points: Float[np.ndarray, "point 2"],
    texts: Sequence[str],
    *,
    first: Sequence[bool] | None = None,
    width: float,
    height: float,
    size: float = 12.0,
    gap: float = 7.0,
) -> list[str]:
    """Choose a side of each point for its label so that labels do not overlap.

    Args:
        points: The points, in any unit; they fill `width` × `height` pixels.
        texts: The labels.
        first: Which labels are placed first and always drawn.
        width: The width of the plot, in pixels.
        height: The height of the plot, in pixels.
        size: The font size.
        gap: The radius of a point.

    Returns:
        One of `SIDES` for each point; "" where no side is free.
    """
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    at = (points - low) / np.where(span > 0, span, 1.0) * [width, -height]  # [point, 2] in pixels, y downwards
    first = [False] * len(texts) if first is None else first
    dots = np.concatenate([at - gap * 0.6, at + gap * 0.6], axis=1)  # [point, left top right bottom]
    taken = np.empty((0, 4))
    places = [""] * len(texts)
    for index in sorted(range(len(texts)), key=lambda i: not first[i]):
        others = np.concatenate([np.delete(dots, index, axis=0), taken])
        free = {side: _box(at[index], len(texts[index]), side, size, gap) for side in SIDES}
        fitting = (side for side, box in free.items() if not _collides(box, others))
        places[index] = chosen = next(fitting, "above" if first[index] else "")
        if chosen:
            taken = np.concatenate([taken, free[chosen][None]])
    return places


def label_layers(base: alt.Chart, text: str, *, size: float = 12.0, gap: float = 7.0, **look: Any) -> list[alt.Chart]:
    """Return one text layer per side; the table of `base` has the sides in its column `side`."""
    beside = {
        "above": {"dy": -gap, "baseline": "bottom"},
        "right": {"dx": gap, "align": "left", "baseline": "middle"},
        "below": {"dy": gap, "baseline": "top"},
        "left": {"dx": -gap, "align": "right", "baseline": "middle"},
    }
    sides = ((base.transform_filter(alt.datum.side == side), look | beside[side]) for side in SIDES)
    return [there.mark_text(fontSize=size, **style).encode(text=text) for there, style in sides]


def _box(point: Float[np.ndarray, "2"], letters: int, side: str, size: float, gap: float) -> Float[np.ndarray, "4"]:
    half = np.array([max(1, letters) * _LETTER, _LINE]) * size / 2
    middle = point + np.array(SIDES[side]) * (gap + half)
    return np.concatenate([middle - half, middle + half])


def _collides(box: Float[np.ndarray, "4"], others: Float[np.ndarray, "other 4"]) -> bool:
    left, top, right, bottom = others.T
    return bool(np.any((box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])))


def heat_colour(field: str, stops: Sequence[str], low: float, high: float, **look: Any) -> alt.Color:
    """Encode a number as colour on the fixed domain from `low` to `high`; `look` holds the title and legend."""
    return alt.Color(field, scale=alt.Scale(**theme.vega_scale(list(stops), low, high)), **look)


def category_colours(field: str, names: Sequence[Any], colours: Sequence[str], **look: Any) -> alt.Color:
    """Encode categories as colours, in order; `look` holds the title and legend."""
    return alt.Color(field, scale=alt.Scale(domain=list(names), range=list(colours)), **look)


def tooltips(*columns: str | tuple[str, ...]) -> list[alt.Tooltip]:
    """Build tooltip lines from columns: "part:N", or (column, title, format); the title "" is the column name."""
    lines = ((column,) if isinstance(column, str) else column for column in columns)
    looks: list[tuple[str, Any]] = [(column, zip(("title", "format"), look, strict=False)) for column, *look in lines]
    return [alt.Tooltip(column, **{name: text for name, text in look if text}) for column, look in looks]


def top_title(title: str) -> dict[str, str]:
    """Return the title property of a chart; an empty title takes no space."""
    return {"title": title} if title else {}


def masked_colours(masked: str, broken: str) -> list[dict[str, str]]:
    """Return the colour `condition` that draws `masked` cells grey and `broken` ones (not a number) in a warning colour."""
    return [{"test": masked, "value": theme.MASKED}, {"test": broken, "value": theme.BROKEN}]


def pixel_axes(width: float, height: float) -> tuple[alt.X, alt.Y]:
    """Return invisible axes of a drawing in pixels, from the upper left corner."""
    across, down = (alt.Scale(domain=ends, nice=False, zero=False) for ends in ([0, width], [height, 0]))
    return alt.X("x:Q", scale=across, axis=None), alt.Y("y:Q", scale=down, axis=None)


CHIPS = {"right": ("#0b8f6a", 0.7, 0.14), "wrong": ("#d55e00", 1.0, 0.18)}
"""The hue of a token's box by verdict, and its share in the border and in the fill."""


def token_lanes(
    tokens: pd.DataFrame, *, columns: int, title: str, hues: Mapping[str, str] | None = None
) -> list[alt.Chart]:
    """Draw lanes of tokens: a box for each token, with its verdict and probability.

    Args:
        tokens: One row per token: lane, at (its column), token, kind ("right", "wrong" or "plain") and probability (NaN for
            none).
        columns: The number of columns.
        title: The title of the horizontal axis.
        hues: The colours of lanes that have a colour key.
    """
    ground, ink = theme.BACKGROUND, theme.TEXT
    looks = {
        kind: (theme.blend(ground, hue, fill), theme.blend(ground, hue, edge))
        for kind, (hue, edge, fill) in CHIPS.items()
    }
    looks["plain"] = (theme.SECONDARY_BACKGROUND, theme.blend(ground, ink, 0.2))
    marks = {"right": f" {theme.RIGHT.mark}", "wrong": f" {theme.WRONG.mark}", "plain": ""}
    verdicts = [marks[kind] for kind in tokens["kind"]]
    data = tokens.assign(
        fill=[looks[kind][0] for kind in tokens["kind"]],
        edge=[looks[kind][1] for kind in tokens["kind"]],
        note=["" if np.isnan(p) else f"{p:.2f}{mark}" for p, mark in zip(tokens["probability"], verdicts, strict=True)],
    )
    lanes = list(dict.fromkeys(tokens["lane"]))
    below = alt.Axis(labelAngle=0, domain=False, ticks=False)
    x = alt.X("at:O", title=title, scale=alt.Scale(domain=list(range(columns))), axis=below)
    beside = alt.Axis(domain=False, ticks=False, labelPadding=22 if hues else 6, labelLimit=160)
    base = alt.Chart(data).encode(x, alt.Y("lane:N", sort=lanes, title=None, axis=beside))
    noted, bare = base.transform_filter("datum.note"), base.transform_filter("!datum.note")
    box: dict[str, Any] = {"cornerRadius": 6, "width": {"band": 0.94}, "height": {"band": 0.88}, "strokeWidth": 1.5}
    colours = alt.Fill("fill:N", scale=None, legend=None), alt.Stroke("edge:N", scale=None, legend=None)
    firm, broken = base.transform_filter("datum.kind != 'wrong'"), base.transform_filter("datum.kind == 'wrong'")
    named = alt.Chart(pd.DataFrame((hues or {}).items(), columns=["name", "hue"]))
    named = named.mark_square(size=140, opacity=1, clip=False)
    own = alt.Color("hue:N", scale=None, legend=None)
    return [
        firm.mark_rect(**box).encode(*colours),
        broken.mark_rect(strokeDash=[4, 3], **box).encode(*colours),
        noted.mark_text(dy=-6, fontSize=13, fontWeight="bold", color=ink).encode(text="token:N"),
        noted.mark_text(dy=9, fontSize=10, color=ink).encode(text="note:N"),
        bare.mark_text(fontSize=13, color=ink).encode(text="token:N"),
        named.encode(x=alt.value(-12), y=alt.Y("name:N", sort=lanes), color=own),
    ]


LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
GREY, LOUD = ".", "!"


def small_maps(
    frames: Sequence[Mapping[str, Any]],
    maps: Sequence[Float[np.ndarray, "row col"]],
    axes: tuple[alt.X, alt.Y],
    *,
    title: str = "weight",
    **legend: Any,
) -> alt.Chart:
    """Draw the cells of many thumbnails. Each map is sent as a string with one letter per cell, which the browser decodes.

    Args:
        frames: The rectangle of each map: x, y, x2 and y2.
        maps: The values of each map, from 0 to 1; NaN where masked, infinite where not a number.
        axes: The axes, from `pixel_axes`.
        title: The title of the scale.
        legend: Further options of the legend.
    """
    rows = []
    for frame, values in zip(frames, maps, strict=True):
        n_rows, n_columns = values.shape
        letters = [
            GREY if np.isnan(value) else LETTERS[round(value * (len(LETTERS) - 1))] if np.isfinite(value) else LOUD
            for value in values.ravel().tolist()
        ]
        size = {"wide": (frame["x2"] - frame["x"]) / n_columns, "tall": (frame["y2"] - frame["y"]) / n_rows}
        rows.append({"x0": frame["x"], "y0": frame["y"], **size, "columns": n_columns, "cells": "".join(letters)})
    look = alt.Legend(orient="bottom", direction="horizontal", gradientLength=160, values=[0, 0.5, 1], **legend)
    hidden = masked_colours(f"datum.letter === '{GREY}'", f"datum.letter === '{LOUD}'")
    colour = heat_colour("weight:Q", theme.SEQUENTIAL, 0, 1, title=title, legend=look, condition=hidden)
    return (
        alt.Chart(pd.DataFrame(rows))
        .transform_calculate(letter="split(datum.cells, '')", cell="sequence(length(datum.cells))")
        .transform_flatten(["letter", "cell"])
        .transform_calculate(
            weight=f"indexof('{LETTERS}', datum.letter) / {len(LETTERS) - 1}",
            x="datum.x0 + datum.cell % datum.columns * datum.wide",
            y="datum.y0 + floor(datum.cell / datum.columns) * datum.tall",
        )
        .transform_calculate(x2="datum.x + datum.wide", y2="datum.y + datum.tall")
        .mark_rect(strokeWidth=0)
        .encode(*axes, x2="x2:Q", y2="y2:Q", color=colour)
    )
