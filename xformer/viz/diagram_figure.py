"""Draw the diagram of a model: its parts along the residual stream, with their equations, shapes and parameter counts.

viz.model_diagram(reading)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot
from typing import Any

import altair as alt
import pandas as pd

from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Chart, inline, layered, pixel_axes
from xformer.viz.diagram import Arrow, Box, Diagram, StackFrame, described


def model_diagram(reading: Reading) -> Chart:
    """Draw a block diagram of the model: each part with its equation, output shape and number of parameters.

    One layer of a stack represents all of them. The shapes are those of this input.

    Args:
        reading: The run.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.model_diagram(reading)
    """
    parts = described(reading)
    sheet, places, boxes = Sheet(), Places(parts), {box.id: box for box in parts.boxes}
    for frame, at in places.frames:
        _layers(sheet, frame, at)
    for arrow in parts.arrows:
        _arrow(sheet, arrow, places.route(arrow, boxes[arrow.source], boxes[arrow.target]), boxes)
    for box in parts.boxes:
        at = places[box.id]
        card(sheet, box, at)
        if box.kind == "output":
            out = at.x + at.wide
            _arrow(sheet, Arrow(box.id, "", "stream"), [(out, at.stream), (out + 19, at.stream)], boxes)
        if box.sublayer == 0 and box.place == "above":
            sheet.words(at.up - 4, at.stream + 29, "residual stream", sheet.muted, 12.5, level=1)
    words = f"{parts.title} · {parts.n_parameters:,} parameters" if parts.n_parameters else parts.title
    title = alt.Title(words, anchor="start", color=sheet.ink, fontSize=14)
    return sheet.chart(places.width, places.height).properties(title=title)


def _layers(sheet: Sheet, frame: StackFrame, at: tuple[float, float, float, float]) -> None:
    """Draw the card of a layer; further layers show as cards behind it."""
    x, y, wide, tall = at
    fill, edge = theme.blend(sheet.ground, sheet.ink, 0.035), theme.blend(sheet.ground, sheet.ink, 0.16)
    for behind in (2, 1, 0) if frame.n_layers > 1 else (0,):
        shift = behind * CARD
        sheet.box(x + shift, y - shift, wide, tall, fill, edge=edge, thick=1.2, corner=16, level=-behind)
    sheet.words(x + 14, y + 15, frame.title, sheet.muted, 13, bold=True)
    if frame.n_layers > 1:
        text = f"× {frame.n_layers} layers"
        badge = LETTER * 13 * len(text) + 20
        sheet.box(x + wide - badge - 10, y + 5, badge, 20, sheet.ink, corner=10, level=1)
        sheet.words(x + wide - badge / 2 - 10, y + 15.5, text, sheet.ground, 13, bold=True, align="center", level=1)


def _arrow(sheet: Sheet, arrow: Arrow, points: list[Point], boxes: dict[str, Box]) -> None:
    """Draw an arrow: thick along the stream, coloured if it feeds positions or encoder output into attention."""
    ink, thick = theme.blend(sheet.ground, sheet.ink, 0.42), 3.0 if arrow.flow in ("stream", "residual") else 1.5
    if arrow.flow in ("inside", "memory"):
        kind = boxes[arrow.source].kind if arrow.flow == "inside" else "attention"
        ink = theme.PART_HUES[kind]
    sheet.line(points, ink, thick, dashed=arrow.flow == "inside", level=1)
    (x, y), (px, py) = points[-1], points[-2]
    length = hypot(x - px, y - py) or 1
    ux, uy = (x - px) / length * 7, (y - py) / length * 7
    head = [(x - ux - uy * 0.6, y - uy + ux * 0.6), (x, y), (x - ux + uy * 0.6, y - uy - ux * 0.6)]
    sheet.line(head, ink, 2, level=1)
    if arrow.flow == "branch" and points[0][1] > y and boxes[arrow.source].place == "stream":
        sheet.dot(*points[0], 3.4, ink, level=1)
    if arrow.flow == "memory":
        sheet.words(points[2][0] + 10, points[2][1] - 10, "keys and values", sheet.muted, 12.5, level=1)


RISE = {"pre": 62, "post": 54, "none": 54}
"""Pixels from a sublayer down to the stream, by the placement of norms."""

ABOVE, ON, SUM, HEAD, BELOW, LANE, CARD = 102, 88, 11, 30, 50, 34, 6
"""Pixels: the heights of parts above and on the stream, the radius of a sum, the space above and below the cards of layers,
between stacks, and the offset of the cards behind."""

PILL = (54, 26)
"""Width and height of a norm."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """The rectangle of a part. `up` and `down` are the x at which a branch leaves the stream and returns to it."""

    x: float
    y: float
    wide: float
    tall: float
    stream: float
    up: float = 0
    down: float = 0

    @property
    def box(self) -> tuple[float, float, float, float]:
        return self.x, self.y, self.wide, self.tall

    @property
    def middle(self) -> float:
        return self.x + self.wide / 2


class Places:
    """The layout of a diagram: the places of all parts by id, and of the cards of the layers."""

    def __init__(self, diagram: Diagram) -> None:
        self._at: dict[str, Place] = {}
        self.frames: list[tuple[StackFrame, tuple[float, float, float, float]]] = []
        self._norm, self._lanes = diagram.norm, list[float]()
        columns = [list(_columns(stack, diagram)) for stack in diagram.stacks]
        self.width = max(sum(wide for _, wide in row) for row in columns)
        top = 2.0 * CARD + 4
        for stack, row in zip(diagram.stacks, columns, strict=True):
            self._row(stack, row, [box for box in diagram.boxes if box.stack == stack.name], top)
            top = self._lanes[-1] + LANE / 2
        self.height = top - LANE + 4

    def __getitem__(self, box_id: str) -> Place:
        return self._at[box_id]

    def _row(self, stack: StackFrame, row: list[tuple[str, float]], boxes: list[Box], top: float) -> None:
        above = top + HEAD
        stream = above + ABOVE + RISE[self._norm]
        x, at = (self.width - sum(wide for _, wide in row)) / 2, dict[str, tuple[float, float]]()
        for name, wide in row:
            at[name] = (x, wide)
            x += wide
        end = sum(at["frame end"])
        self.frames.append((stack, (at["frame"][0], top, end - at["frame"][0], stream + BELOW - top)))
        self._lanes.append(stream + BELOW + LANE / 2)
        self._at |= {box.id: self._place(box, at, above, stream) for box in boxes}

    def _place(self, box: Box, at: dict[str, tuple[float, float]], above: float, stream: float) -> Place:
        def on(middle: float, wide: float, tall: float) -> Place:
            return Place(middle - wide / 2, stream - tall / 2, wide, tall, stream)

        x, wide = at.get(f"sub{box.sublayer}", (0.0, 0.0))
        up = x + (38 if self._norm == "pre" else 30)
        down = x + wide - (PILL[0] + 12 + SUM if self._norm == "post" else 38)
        match box.kind:
            case "tokens" | "embedding" | "output":
                x, wide = at[box.kind]
                return on(x + wide / 2, wide, ON)
            case "positions":
                if "pos_sum" in at:
                    left, right = at["embedding"][0], sum(at["pos_sum"]) + 4
                else:
                    left, right = at["tokens"][0] + 0.45 * at["tokens"][1], sum(at["embedding"])
                return Place(left, above, right - left, ABOVE, stream)
            case "sum":
                return on(at["pos_sum"][0] + SUM if box.sublayer is None else down, 2 * SUM, 2 * SUM)
            case "norm" if box.place == "rise":
                return Place(up - PILL[0] / 2, stream - RISE["pre"] / 2 - PILL[1] / 2 - 1, *PILL, stream, up)
            case "norm":
                right = at["final_norm"][0] + PILL[0] if box.sublayer is None else x + wide
                return on(right - PILL[0] / 2, *PILL)
            case _:
                return Place(x, above, wide, ABOVE, stream, up, down)

    def route(self, arrow: Arrow, source: Box, target: Box) -> list[Point]:
        """Return the corners of an arrow."""
        a, b = self[source.id], self[target.id]
        if arrow.flow in ("stream", "residual"):
            return [(a.x + a.wide, a.stream), (b.x, b.stream)]
        if arrow.flow == "inside":
            y = a.y + a.tall / 2
            return [(a.x + a.wide, y), (b.x, y)]
        if arrow.flow == "memory":
            out, lane, down = a.x + a.wide + 34, self._lanes[0] - 4, b.middle
            return [(a.x + a.wide, a.stream), (out, a.stream), (out, lane), (down, lane), (down, b.y)]
        if arrow.flow == "add" or source.place == "above":
            return [(b.middle, a.y + a.tall), (b.middle, b.y)]
        up = b.up or a.up
        return [(up, a.y if source.place == "rise" else a.stream), (up, b.y + b.tall)]


def _columns(stack: StackFrame, diagram: Diagram) -> Iterator[tuple[str, float]]:
    """Yield the columns of a stack from left to right, each with its width."""
    has = {box.id.removeprefix(f"{stack.name}.") for box in diagram.boxes if box.stack == stack.name}
    inside = any(arrow.flow == "inside" and arrow.source == f"{stack.name}.positions" for arrow in diagram.arrows)
    yield from (("", 2), ("tokens", 70), ("", 24), ("embedding", 140))
    if "pos_sum" in has:
        yield from (("", 18), ("pos_sum", 2 * SUM))
    yield from (("", 48 if inside else 28), ("frame", 16))
    for number in range(stack.n_sublayers):
        if number:
            yield "", 20
        yield f"sub{number}", 215
    yield from (("frame end", 16), ("", 30))
    if "final_norm" in has:
        yield from (("final_norm", PILL[0]), ("", 26))
    yield from ((("output", 140), ("tail", 24)) if "output" in has else (("tail", 20),))


LETTER = 0.58
"""Width of an average letter relative to the font size, for the fonts in common use."""

MAX_CHIPS, MAX_GLYPHS = 16, 9
"""Largest number of heads drawn as coloured squares, and of tokens drawn as squares."""


def card(sheet: Sheet, box: Box, at: Place) -> None:
    """Draw a part at its place."""
    hue = theme.PART_HUES[box.kind]
    edge = theme.blend(sheet.ground, hue, 0.62)
    if box.kind == "sum":
        sheet.dot(at.middle, at.stream, SUM, sheet.ground, edge=edge, level=2)
        sheet.words(at.middle, at.stream, "+", sheet.ink, 18, bold=True, align="center", level=2)
        return
    fill = sheet.ground if box.kind == "norm" else theme.blend(sheet.ground, hue, 0.09)
    sheet.box(*at.box, fill, edge=edge, thick=1.4, corner=at.tall / 2 if box.kind == "norm" else 11, level=2)
    if box.kind == "norm":
        _write(sheet, at.middle, at.y + at.tall / 2, box.title, 12.5, at.wide - 8, bold=True, align="center")
    elif box.kind == "tokens":
        _write(sheet, at.middle, at.y + 16, box.title, 13.5, at.wide - 8, hue, bold=True, align="center")
        _glyphs(sheet, at, box.shape[-1], hue)
        _write(sheet, at.middle, at.y + 73, box.shape_text, 12, at.wide - 8, sheet.muted, align="center")
    else:
        _lines(sheet, box, at, hue)


def _lines(sheet: Sheet, box: Box, at: Place, hue: str) -> None:
    """Write the title, equation, detail, shape and parameter count of a part, and draw its mask."""
    is_above = at.tall != ON
    x, room, pitch = at.x + 10, at.wide - 20, 22 if is_above else 19
    size = f"{box.parameters:,}" if box.parameters else "shared" if box.is_shared else ""
    room_of_title, ink = room - 24 * (box.mask is not None), theme.blend(sheet.ink, hue, 0.82)
    _write(sheet, x, at.y + 17, box.title, 14.5, room_of_title, ink, bold=True)
    _write(sheet, x, at.y + 17 + pitch, box.equation, 13, room)
    if is_above:
        chips = _chips(sheet, box, x, at.y + 17 + 2 * pitch)
        _write(sheet, x + chips, at.y + 17 + 2 * pitch, box.detail, 12.5, room - chips, sheet.muted)
        wide = LETTER * 12 * len(box.shape_text)
        _write(sheet, x, at.y + 17 + 3 * pitch, box.shape_text, 12, room, sheet.muted)
        _write(sheet, x + room, at.y + 17 + 3 * pitch, size, 12, room - wide - 7, sheet.muted, align="right")
    else:
        unit = " parameter" * bool(box.parameters) + "s" * (box.parameters > 1)
        _write(sheet, x, at.y + 17 + 2 * pitch, box.shape_text, 12, room, sheet.muted)
        _write(sheet, x, at.y + 17 + 3 * pitch, size + unit, 12, room, sheet.muted)
    if box.mask:
        left, top = at.x + at.wide - 28, at.y + 10
        for query, row in enumerate(box.mask):
            for key, seen in enumerate(row):
                ink = hue if seen else theme.blend(sheet.ground, hue, 0.16)
                sheet.box(left + 4.6 * key, top + 4.6 * query, 3.8, 3.8, ink, corner=0.8, level=3)


def _chips(sheet: Sheet, box: Box, x: float, y: float) -> float:
    """Draw the heads as squares in their colours and return the width taken."""
    if not 0 < box.heads <= MAX_CHIPS:
        return 0
    pitch = min(12.0, 90 / box.heads)
    side = max(3.0, pitch - 2.5)
    for head in range(box.heads):
        sheet.box(x + head * pitch, y - side / 2, side, side, theme.head_hue(head), corner=2, level=3)
    return box.heads * pitch + 5


def _glyphs(sheet: Sheet, at: Place, n: int, hue: str) -> None:
    """Draw a square for each token, at most `MAX_GLYPHS`."""
    shown = min(n, MAX_GLYPHS)
    wide, tall = 9 * min(shown, 3) - 2, 9 * -(-shown // 3) - 2
    for token in range(shown):
        x, y = at.middle - wide / 2 + 9 * (token % 3), at.y + 45 - tall / 2 + 9 * (token // 3)
        sheet.box(x, y, 7, 7, theme.blend(sheet.ground, hue, 0.8), corner=1.6, level=3)


def _write(
    sheet: Sheet, x: float, y: float, text: str, size: float, room: float, ink: str = "", *, bold: bool = False,
    align: str = "left",
) -> None:  # fmt: skip
    """Write a line of text, shrunk and then truncated to fit its room."""
    wide = LETTER * len(text)
    size = min(size, max(0.78 * size, room / wide)) if text else size
    most = int(room / (LETTER * size))
    text = text if len(text) <= most + 1 else f"{text[:most]}…"
    if text:
        sheet.words(x, y, text, ink or sheet.ink, size, bold=bold, align=align, level=3)


class Sheet:
    """A drawing in CSS pixels. Higher levels cover lower ones; within a level, text covers lines and lines cover boxes."""

    def __init__(self) -> None:
        self.ground, self.ink = theme.BACKGROUND, theme.TEXT
        self.muted = theme.blend(self.ground, self.ink, 0.66)
        self._marks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self._n_lines = 0

    def box(
        self, x: float, y: float, wide: float, tall: float, fill: str, *, edge: str = "none", thick: float = 1.0,
        corner: float = 0, level: int = 0,
    ) -> None:  # fmt: skip
        """Draw a rectangle from its upper left corner."""
        row = {"x": x, "y": y, "x2": x + wide, "y2": y + tall, "fill": fill, "edge": edge, "thick": thick}
        self._put(row, level, 0, corner)

    def line(self, points: list[Point], ink: str, thick: float = 1.0, *, dashed: bool = False, level: int = 0) -> None:
        """Draw a line through points."""
        self._n_lines += 1
        for at, (x, y) in enumerate(points):
            self._put({"x": x, "y": y, "edge": ink, "thick": thick, "line": self._n_lines, "at": at}, level, 1, dashed)

    def dot(self, x: float, y: float, radius: float, fill: str, *, edge: str = "none", level: int = 0) -> None:
        self._put({"x": x, "y": y, "size": 4 * radius**2, "fill": fill, "edge": edge}, level, 2)

    def words(
        self, x: float, y: float, text: str, ink: str, size: float = 12, *, bold: bool = False, align: str = "left",
        level: int = 0,
    ) -> None:  # fmt: skip
        """Draw a line of text that is centred vertically on y."""
        self._put({"x": x, "y": y, "text": text, "fill": ink, "size": size}, level, 3, align, bold)

    def chart(self, width: float, height: float) -> Chart:
        """Return the whole sheet as a chart."""
        x, y = pixel_axes(width, height)
        drawn = [_layer(key, rows, x, y) for key, rows in sorted(self._marks.items(), key=lambda one: one[0][:2])]
        return layered(*drawn, width=width, height=height)

    def _put(self, row: dict[str, Any], *key: Any) -> None:
        self._marks.setdefault(key, []).append(row)


def _layer(key: tuple[Any, ...], rows: list[dict[str, Any]], x: alt.X, y: alt.Y) -> alt.Chart:
    """Draw all marks of one kind and style as a layer."""
    _, kind, *look = key
    base = alt.Chart(inline(pd.DataFrame(rows))).encode(x, y)
    fill, edge = (alt.Fill("fill:N", scale=None), alt.Stroke("edge:N", scale=None))
    thick = alt.StrokeWidth("thick:Q", scale=None)
    if kind == 0:
        box = base.mark_rect(aria=False, cornerRadius=look[0], opacity=1.0)
        return box.encode(alt.X2("x2:Q"), alt.Y2("y2:Q"), fill, edge, thick)
    if kind == 1:
        dash: dict[str, Any] = {"strokeDash": [4, 4]} if look[0] else {}
        line = base.mark_line(strokeJoin="round", clip=False, **dash)
        return line.encode(edge, thick, order="at:Q", detail="line:N")
    size = alt.Size("size:Q", scale=None)
    if kind == 2:
        return base.mark_circle(opacity=1, strokeWidth=2).encode(fill, edge, size)
    align, bold = look
    weight: Any = "bold" if bold else "normal"
    text = base.mark_text(align=align, baseline="middle", fontWeight=weight, angle=0, clip=False)
    return text.encode(fill, size, text="text:N")
