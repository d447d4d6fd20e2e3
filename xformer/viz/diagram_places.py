"""Where the parts of a model's picture stand on a sheet: on its residual stream from left to right, a row for each stack.

places = Places(diagram)
x, y, wide, tall = places["attn"].box

The browser's picture (pages/components/model_diagram.js) stands in the same way, and stretches with its window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xformer.viz.diagram_parts import Arrow, Box, Diagram, StackFrame

RISE = {"pre": 62, "post": 54, "none": 54}
"""From a sublayer down to the stream, by where the norms are."""
ABOVE, ON, SUM, HEAD, BELOW, LANE, CARD = 102, 88, 11, 30, 50, 34, 6
"""Heights of what is above and on the stream, the radius of a sum, the room around the layers, and between their cards."""
PILL = (54, 26)
Point = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """Where a part stands. `up` and `down` are where the stream leads into a sublayer and where it comes back."""

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
    """The places of all parts by their ids, and of the layers around them."""

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
        """The corners of an arrow."""
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
    """The columns of a stack from left to right, each with its width."""
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
