"""The picture of a model as a figure: its parts on the residual stream, with their equations, shapes and sizes.

viz.model_diagram(reading)
"""

from __future__ import annotations

from math import hypot

import altair as alt

from xformer.adapters import TaskModel
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Sheet, mix
from xformer.viz.diagram import diagram
from xformer.viz.diagram_cards import LETTER, card
from xformer.viz.diagram_of_reading import diagram_of
from xformer.viz.diagram_parts import Arrow, Box, Diagram, StackFrame
from xformer.viz.diagram_places import CARD, Places, Point


def described(reading: Reading) -> Diagram:
    """The parts of the model of a reading and how they are joined, with the shapes that they have for its input."""
    if not isinstance(reading.subject, TaskModel):
        return diagram_of(reading)
    example, config = reading.example, reading.subject.model.config
    n_target = None if example.target is None else example.target.shape[1]
    return diagram(config, config.n_positions(example.stream.shape[1]), n_target)


def model_diagram(reading: Reading, *, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """What the input of a reading passes through: each part with its equation, output shape and number of parameters.

    One layer of a stack stands for all of them. The shapes are those of this input.
    """
    parts = described(reading)
    sheet, places, boxes = Sheet(dark), Places(parts), {box.id: box for box in parts.boxes}
    for frame, at in places.frames:
        _layers(sheet, frame, at)
    for arrow in parts.arrows:
        _arrow(sheet, arrow, places.route(arrow, boxes[arrow.source], boxes[arrow.target]), boxes)
    for box in parts.boxes:
        card(sheet, box, places[box.id])
        if box.kind == "output":
            at = places[box.id]
            out = at.x + at.wide
            _arrow(sheet, Arrow(box.id, "", "stream"), [(out, at.stream), (out + 19, at.stream)], boxes)
    for frame, _ in places.frames:
        first = next(
            places[box.id] for box in parts.boxes if (box.stack, box.sublayer, box.place) == (frame.name, 0, "above")
        )
        sheet.words(first.up - 4, first.stream + 29, "residual stream", sheet.muted, 12.5, level=1)
    words = f"{parts.title} · {parts.n_parameters:,} parameters" if parts.n_parameters else parts.title
    return sheet.chart(places.width, places.height).properties(
        title=alt.Title(words, anchor="start", color=sheet.ink, fontSize=14)
    )


def _layers(sheet: Sheet, frame: StackFrame, at: tuple[float, float, float, float]) -> None:
    """The card of a layer, with the others behind it where there are more."""
    x, y, wide, tall = at
    behind = (2, 1) if frame.n_layers > 1 else ()
    for level, offset in enumerate((*behind, 0), start=-len(behind)):
        shift = offset * CARD
        fill, edge = mix(sheet.ground, sheet.ink, 0.035), mix(sheet.ground, sheet.ink, 0.16)
        sheet.box(x + shift, y - shift, wide, tall, fill, edge=edge, thick=1.2, corner=16, level=level)
    sheet.words(x + 14, y + 15, frame.title, sheet.muted, 13, bold=True)
    if frame.n_layers > 1:
        text = f"× {frame.n_layers} layers"
        badge = LETTER * 13 * len(text) + 20
        sheet.box(x + wide - badge - 10, y + 5, badge, 20, sheet.ink, corner=10, level=1)
        sheet.words(x + wide - badge / 2 - 10, y + 15.5, text, sheet.ground, 13, bold=True, align="center", level=1)


def _arrow(sheet: Sheet, arrow: Arrow, points: list[Point], boxes: dict[str, Box]) -> None:
    """A line with its head; the stream is thick, and what acts inside attention or feeds it from afar has its colour."""
    ink, thick = mix(sheet.ground, sheet.ink, 0.42), 3.0 if arrow.flow in ("stream", "residual") else 1.5
    if arrow.flow in ("inside", "memory"):
        kind = boxes[arrow.source].kind if arrow.flow == "inside" else "attention"
        ink = theme.pick(theme.PART_HUES[kind], sheet.dark)
    sheet.line(points, ink, thick, dash="4 4" if arrow.flow == "inside" else "", level=1)
    (x, y), (px, py) = points[-1], points[-2]
    length = hypot(x - px, y - py) or 1
    ux, uy = (x - px) / length * 7, (y - py) / length * 7
    sheet.line(
        [(x - ux - uy * 0.6, y - uy + ux * 0.6), (x, y), (x - ux + uy * 0.6, y - uy - ux * 0.6)], ink, 2, level=1
    )
    if arrow.flow == "branch" and points[0][1] > y and boxes[arrow.source].place == "stream":
        sheet.dot(*points[0], 3.4, ink, level=1)
    if arrow.flow == "memory":
        sheet.words(points[2][0] + 10, points[2][1] - 10, "keys and values", sheet.muted, 12.5, level=1)
