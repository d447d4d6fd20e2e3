"""What several charts share: layers over one table, labels that do not overlap, and sheets drawn in CSS pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from xformer.viz import theme


def layered(*charts: Any, **properties: Any) -> alt.LayerChart | alt.FacetChart:
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


class InlineRows(alt.Data):
    """`altair.Data(values=rows)` without validation of each row, which takes seconds for many thousand."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(values=rows)

    def to_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The data as Vega-Lite has it."""
        return {"values": self._kwds["values"]}

    def copy(self, *_: Any, **__: Any) -> InlineRows:
        """The same object: the rows never change."""
        return self

    def __deepcopy__(self, _: Any) -> InlineRows:
        return self


SIDES = ("above", "right", "below", "left")
"""The sides of a point, in the order in which they are tried."""

_LETTER, _LINE = 0.62, 1.1  # of the font's size: how wide a letter is, and how high a line


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
        chosen = next((side for side, box in free.items() if not _collides(box, others)), "")
        if not chosen and first[index]:
            chosen = SIDES[0]
        places[index] = chosen
        if chosen:
            taken = np.concatenate([taken, free[chosen][None]])
    return places


def label_layers(
    base: alt.Chart, text: str, *, size: float = 12.0, gap: float = 7.0, column: str = "side", **look: Any
) -> list[alt.Chart]:
    """One layer of text for each side; the table of `base` has the sides in `column`."""
    beside = {
        "above": {"dy": -gap, "baseline": "bottom"},
        "right": {"dx": gap, "align": "left", "baseline": "middle"},
        "below": {"dy": gap, "baseline": "top"},
        "left": {"dx": -gap, "align": "right", "baseline": "middle"},
    }
    return [
        base.transform_filter(alt.datum[column] == side)
        .mark_text(fontSize=size, **beside[side], **look)
        .encode(text=text)
        for side in SIDES
    ]


def _box(point: Float[np.ndarray, "2"], letters: int, side: str, size: float, gap: float) -> Float[np.ndarray, "4"]:
    wide, high = max(1, letters) * size * _LETTER, size * _LINE
    dx, dy = {
        "above": (-wide / 2, -gap - high),
        "right": (gap, -high / 2),
        "below": (-wide / 2, gap),
        "left": (-gap - wide, -high / 2),
    }[side]
    left, top = point[0] + dx, point[1] + dy
    return np.array([left, top, left + wide, top + high])


def _collides(box: Float[np.ndarray, "4"], others: Float[np.ndarray, "other 4"]) -> bool:
    left, top, right, bottom = others.T
    return bool(np.any((box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])))


SECONDARY = 0.66
"""The share of the text colour in secondary text, as in the browser."""

WIDE, CHIP = 760, 28
"""CSS pixels: the least width of a sheet, and the height of a token's box."""


def mix(one: str, other: str, share: float) -> str:
    """Mix two colours in sRGB, as CSS does, with `share` of the second."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


class Sheet:
    """A drawing in CSS pixels. Higher levels cover lower ones; within a level, text covers lines and lines cover boxes."""

    def __init__(self, dark: bool = False) -> None:
        self.ground, self.ink = theme.pick(theme.BACKGROUND, dark), theme.pick(theme.TEXT, dark)
        self.primary, self.dark = theme.pick(theme.PRIMARY, dark), dark
        self.muted, self.faint, self.rule = (mix(self.ground, self.ink, share) for share in (SECONDARY, 0.08, 0.22))
        self._marks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self._n_lines = 0

    def box(
        self, x: float, y: float, wide: float, tall: float, fill: str = "none", *, edge: str = "none", thick: float = 1.0,
        dash: str = "", corner: float = 0, level: int = 0, opacity: float = 1.0,
    ) -> None:  # fmt: skip
        """Draw a rectangle from its upper left corner."""
        row = {"x": x, "y": y, "x2": x + wide, "y2": y + tall, "fill": fill, "edge": edge, "thick": thick}
        self._put(row, level, 0, corner, dash, opacity)

    def line(
        self, points: Sequence[tuple[float, float]], ink: str, thick: float = 1.0, *, dash: str = "", level: int = 0
    ) -> None:
        """Draw a line through points."""
        self._n_lines += 1
        for at, (x, y) in enumerate(points):
            self._put({"x": x, "y": y, "edge": ink, "thick": thick, "line": self._n_lines, "at": at}, level, 1, dash)

    def dot(self, x: float, y: float, radius: float, fill: str, *, edge: str = "none", level: int = 0) -> None:
        self._put({"x": x, "y": y, "size": 4 * radius**2, "fill": fill, "edge": edge}, level, 2)

    def words(
        self, x: float, y: float, text: str, ink: str, size: float = 12, *, bold: bool = False, align: str = "left",
        upwards: bool = False, level: int = 0,
    ) -> None:  # fmt: skip
        """Draw a line of text that is centred vertically on y."""
        self._put({"x": x, "y": y, "text": text, "fill": ink, "size": size}, level, 3, align, bold, upwards)

    def chip(
        self, x: float, y: float, cell: float, token: str, kind: str, *, hue: str = "", share: float | None = None
    ) -> None:
        """Draw a token in its box, in a column `cell` wide, as the widgets do; the bar at its foot is its probability.

        `kind` is "read", "answer", "said", "plain", "right" or "wrong".
        """
        look: dict[str, Any] = {"edge": mix(self.ground, self.ink, 0.2)}
        if kind in ("said", "plain"):
            look["fill"] = theme.pick(theme.SECONDARY_BACKGROUND, self.dark)
        elif kind == "right":
            look = {"edge": mix(self.ground, "#0b8f6a", 0.7), "fill": mix(self.ground, "#0b8f6a", 0.14)}
        elif kind == "wrong":
            look = {"edge": "#d55e00", "fill": mix(self.ground, "#d55e00", 0.18), "thick": 2, "dash": "4 3"}
        wide, n = cell - 4, len(token)
        self.box(x + 2, y, wide, CHIP, corner=6, level=1, **look)
        size = max(6.0, min(15.0 if cell >= 44 else 12.5, 1.7 * wide / max(1, n)))
        ink, bold = self.muted if kind == "read" else self.ink, kind in ("answer", "said", "wrong")
        self.words(x + cell / 2, y + CHIP / 2 + 1, token, ink, size, bold=bold, align="center", level=2)
        if mark := {"right": theme.RIGHT.mark, "wrong": theme.WRONG.mark}.get(kind):
            self.words(x + cell - 4, y + 6, mark, self.ink, 9, align="right", level=2)
        if share is not None:
            self.box(x + 3, y + CHIP - 4, (wide - 2) * share, 4, hue or self.ink, level=2)

    def chart(self, width: float, height: float) -> alt.LayerChart | alt.FacetChart:
        """The whole sheet as a chart."""
        x = alt.X("x:Q", scale=alt.Scale(domain=[0, width], nice=False), axis=None)
        y = alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False), axis=None)
        drawn = [_layer(key, rows, x, y) for key, rows in sorted(self._marks.items(), key=lambda one: one[0][:2])]
        return layered(*drawn, width=width, height=height)

    def _put(self, row: dict[str, Any], *key: Any) -> None:
        self._marks.setdefault(key, []).append(row)


def _layer(key: tuple[Any, ...], rows: list[dict[str, Any]], x: alt.X, y: alt.Y) -> alt.Chart:
    """The layer of one kind of marks with one look."""
    _, kind, *look = key
    base = alt.Chart(inline(pd.DataFrame(rows))).encode(x, y)
    fill, edge = (alt.Fill("fill:N", scale=None), alt.Stroke("edge:N", scale=None))
    thick = alt.StrokeWidth("thick:Q", scale=None)
    if kind == 0:
        corner, dash, opacity = look
        box = base.mark_rect(aria=False, cornerRadius=corner, opacity=opacity, **_dashed(dash))
        return box.encode(alt.X2("x2:Q"), alt.Y2("y2:Q"), fill, edge, thick)
    if kind == 1:
        line = base.mark_line(strokeJoin="round", clip=False, **_dashed(look[0]))
        return line.encode(edge, thick, order="at:Q", detail="line:N")
    size = alt.Size("size:Q", scale=None)
    if kind == 2:
        return base.mark_circle(opacity=1, strokeWidth=2).encode(fill, edge, size)
    align, bold, upwards = look
    weight: Any = "bold" if bold else "normal"
    text = base.mark_text(align=align, baseline="middle", fontWeight=weight, angle=270 if upwards else 0, clip=False)
    return text.encode(fill, size, text="text:N")


def _dashed(dash: str) -> dict[str, Any]:
    return {"strokeDash": [int(part) for part in dash.split()]} if dash else {}
