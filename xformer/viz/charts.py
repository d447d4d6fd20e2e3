"""What several charts share: layers over one table, colour scales, cells, lanes of tokens, small maps and labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from xformer.blocks import block_max, factor
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz import theme

Chart = alt.LayerChart | alt.FacetChart
"""What `altair.layer` returns."""


def layered(*charts: Any, **properties: Any) -> Chart:
    """`altair.layer`, three times as fast where all charts show one table: Altair would serialise it once for each layer.

    Args:
        charts: The layers, from the back to the front.
        properties: Properties of the layered chart, such as height and title.
    """
    data = charts[0].data
    if data is alt.Undefined or any(chart.data is not data for chart in charts):
        return alt.layer(*charts, **properties)
    bare = [chart.copy(deep=False) for chart in charts]
    for chart in bare:
        chart.data = alt.Undefined
    return alt.layer(*bare, data=data, **properties)


def inks(stops: Sequence[str], values: ArrayLike, low: float, high: float) -> list[str]:
    """The colour of a text on each cell of a heatmap: light on dark cells and dark on light ones.

    Args:
        stops: The colours of the scale, from `low` to `high`.
        values: The numbers in the cells; those beyond the scale have the colour of its end, NaN that of its middle.
        low: The start of the scale.
        high: The end of the scale.
    """
    share = np.nan_to_num((np.asarray(values, dtype=float) - low) / (high - low), nan=0.5, posinf=1, neginf=0)
    return [theme.ink(stops[int(place)]) for place in np.rint(np.clip(share, 0, 1) * (len(stops) - 1))]


def written() -> Any:
    """The colour of a text by its column `ink` (see `inks`), without a scale that would merge with that of the cells."""
    return alt.condition(alt.datum.ink == "#ffffff", alt.value("#ffffff"), alt.value(theme.TEXT[0]))


def inline(frame: pd.DataFrame) -> dict[str, Any]:
    """The rows of a table as inline data. Streamlit sends a table itself as Arrow, in which Vega finds no lists."""
    return {"values": json.loads(str(frame.round(4).to_json(orient="records")))}


SIDES = {"above": (0, -1), "right": (1, 0), "below": (0, 1), "left": (-1, 0)}
"""The sides of a point, in the order in which they are tried, and where each lies."""

_LETTER, _LINE = 0.62, 1.1  # of the font's size: how wide a letter is, and how high a line


def head_titles(reading: Reading, table: pd.DataFrame) -> list[str]:
    """The heads of a table with the columns layer and head, in words."""
    pairs = zip(table["layer"], table["head"], strict=True)
    return [head_title(path, head, is_pair=reading.is_pair) for path, head in pairs]


def numbered(table: pd.DataFrame) -> list[str]:
    """Each position with its token, "3 · 12", so that repeats stay distinct; the position alone where it has none."""
    return [f"{at} · {text}" if text else str(at) for at, text in zip(table["position"], table["token"], strict=True)]


PADDED = alt.AutoSizeParams(type="pad")
"""The axes stand outside of the width and the height, which are those of the cells."""


def squares(n_rows: int, n_columns: int, largest: int, most: int) -> dict[str, int]:
    """The size of a chart whose cells are squares of up to `largest` pixels, its longer side at most `most` where they fit."""
    cell = max(6, min(largest, most // max(n_rows, n_columns)))
    return {"width": cell * n_columns, "height": cell * n_rows}


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
    """Choose a side of each point for its label, so that no labels overlap.

    Args:
        points: The points, in any unit; they fill `width` × `height` pixels.
        texts: The labels.
        first: Which labels are always drawn, and placed before the others.
        width: Pixels of the plot.
        height: Pixels of the plot.
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
    """One layer of text for each side; the table of `base` has the sides in its column `side`."""
    beside = {
        "above": {"dy": -gap, "baseline": "bottom"},
        "right": {"dx": gap, "align": "left", "baseline": "middle"},
        "below": {"dy": gap, "baseline": "top"},
        "left": {"dx": -gap, "align": "right", "baseline": "middle"},
    }
    return [
        base.transform_filter(alt.datum.side == side).mark_text(fontSize=size, **beside[side], **look).encode(text=text)
        for side in SIDES
    ]


def _box(point: Float[np.ndarray, "2"], letters: int, side: str, size: float, gap: float) -> Float[np.ndarray, "4"]:
    half = np.array([max(1, letters) * _LETTER, _LINE]) * size / 2
    middle = point + np.array(SIDES[side]) * (gap + half)
    return np.concatenate([middle - half, middle + half])


def _collides(box: Float[np.ndarray, "4"], others: Float[np.ndarray, "other 4"]) -> bool:
    left, top, right, bottom = others.T
    return bool(np.any((box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])))


def heat(field: str, stops: Sequence[str], low: float, high: float, **look: Any) -> alt.Color:
    """A colour by a number, on the fixed domain from `low` to `high`; `look` has the title and the legend."""
    return alt.Color(field, scale=alt.Scale(**theme.vega_scale(list(stops), low, high)), **look)


def hues(field: str, names: Sequence[Any], colours: Sequence[str], **look: Any) -> alt.Color:
    """A colour for each of some names, in their order; `look` has the title and the legend."""
    return alt.Color(field, scale=alt.Scale(domain=list(names), range=list(colours)), **look)


def tips(*columns: str | tuple[str, ...]) -> list[alt.Tooltip]:
    """The lines of a hover: "part:N", or a column, its title ("" for its name) and its format: ("part:Q", "share", "+.6f")."""
    named = ((column,) if isinstance(column, str) else column for column in columns)
    looks: list[tuple[str, Any]] = [(of, zip(("title", "format"), look, strict=False)) for of, *look in named]
    return [alt.Tooltip(of, **{name: text for name, text in look if text}) for of, look in looks]


def above(title: str) -> dict[str, str]:
    """The title of a chart; a chart without one has no room for it."""
    return {"title": title} if title else {}


def unseen(masked: str, broken: str, dark: bool) -> list[dict[str, str]]:
    """The `condition` of a colour whose cells are grey where they are `masked` and loud where they are no numbers."""
    return [{"test": masked, "value": theme.pick(theme.MASKED, dark)}, {"test": broken, "value": theme.BROKEN}]


def pixel_axes(width: float, height: float) -> tuple[alt.X, alt.Y]:
    """Invisible axes of a drawing in its own units, from the upper left corner."""
    across, down = (alt.Scale(domain=ends, nice=False, zero=False) for ends in ([0, width], [height, 0]))
    return alt.X("x:Q", scale=across, axis=None), alt.Y("y:Q", scale=down, axis=None)


def mix(one: str, other: str, share: float) -> str:
    """Mix two colours in sRGB, as CSS does, with `share` of the second."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


CHIPS = {"right": ("#0b8f6a", 0.7, 0.14), "wrong": ("#d55e00", 1.0, 0.18)}
"""The hue of a token's box by its verdict, and how much of it the border and the inside have."""


def token_lanes(
    tokens: pd.DataFrame, *, columns: int, title: str, hues: Mapping[str, str] | None = None, dark: bool = False
) -> list[alt.Chart]:
    """Layers of lanes of tokens, a box for each token with its verdict and its probability.

    Args:
        tokens: A row for each token: lane, at (its column), token, kind ("right", "wrong" or "plain") and probability, which
            is not a number where there is none.
        columns: The number of columns.
        title: What the columns are.
        hues: A colour for some of the lanes.
        dark: Whether to draw on a dark background.
    """
    ground, ink = theme.pick(theme.BACKGROUND, dark), theme.pick(theme.TEXT, dark)
    looks = {kind: (mix(ground, hue, inside), mix(ground, hue, edge)) for kind, (hue, edge, inside) in CHIPS.items()}
    looks["plain"] = (theme.pick(theme.SECONDARY_BACKGROUND, dark), mix(ground, ink, 0.2))
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


def pool_maps(maps: Float[np.ndarray, "map row col"], side: int) -> Float[np.ndarray, "map row col"]:
    """Maps with at most `side` cells on either axis: the largest value of a block stands for it, NaN where all of it is NaN."""
    maps = np.where(np.isnan(maps), -np.inf, maps)
    for axis in (1, 2):
        maps = block_max(maps, factor(maps.shape[axis], side), axis)
    return np.where(np.isneginf(maps), np.nan, maps)


def small_maps(
    frames: Sequence[Mapping[str, Any]],
    maps: Sequence[Float[np.ndarray, "row col"]],
    axes: tuple[alt.X, alt.Y],
    *,
    title: str = "weight",
    dark: bool = False,
    **legend: Any,
) -> alt.Chart:
    """The cells of many small maps: of each map a letter a cell is sent, which the browser takes apart.

    Args:
        frames: Where each map stands: x, y, x2 and y2.
        maps: The values of each map, from 0 to 1; NaN where masked, infinite where it is not a number.
        axes: Those of `pixel_axes`.
        title: The title of the scale.
        dark: Whether to draw on a dark background.
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
    hidden = unseen(f"datum.letter === '{GREY}'", f"datum.letter === '{LOUD}'", dark)
    colour = heat("weight:Q", theme.sequential(dark), 0, 1, title=title, legend=look, condition=hidden)
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
