"""A part of a model's picture on a sheet: a card with its title, equation, output shape and number of parameters.

card(sheet, box, place)
"""

from __future__ import annotations

from xformer.viz import theme
from xformer.viz.charts import Sheet, mix
from xformer.viz.diagram_parts import Box
from xformer.viz.diagram_places import ON, SUM, Place

LETTER = 0.58
"""Width of a letter by its height, of an ordinary one of the fonts that a reader may have."""
MOST_CHIPS, MOST_GLYPHS = 16, 9
"""So many heads have a square in their colour, and so many tokens one."""


def card(sheet: Sheet, box: Box, at: Place) -> None:
    """Draw a part where it stands."""
    hue = theme.pick(theme.PART_HUES[box.kind], sheet.dark)
    edge = mix(sheet.ground, hue, 0.62)
    if box.kind == "sum":
        sheet.dot(at.middle, at.stream, SUM, sheet.ground, edge=edge, level=2)
        sheet.words(at.middle, at.stream, "+", sheet.ink, 18, bold=True, align="center", level=2)
        return
    fill = sheet.ground if box.kind == "norm" else mix(sheet.ground, hue, 0.09)
    corner = at.tall / 2 if box.kind == "norm" else 11
    sheet.box(*at.box, fill, edge=edge, thick=1.4, corner=corner, level=2)
    if box.kind == "norm":
        _write(sheet, at.middle, at.y + at.tall / 2, box.title, 12.5, at.wide - 8, bold=True, align="center")
    elif box.kind == "tokens":
        _write(sheet, at.middle, at.y + 16, box.title, 13.5, at.wide - 8, hue, bold=True, align="center")
        _glyphs(sheet, at, box.shape[-1], hue)
        _write(sheet, at.middle, at.y + 73, box.shape_text, 12, at.wide - 8, sheet.muted, align="center")
    else:
        _lines(sheet, box, at, hue)


def _lines(sheet: Sheet, box: Box, at: Place, hue: str) -> None:
    """Title, equation, what else there is to say, shape and size."""
    is_above = at.tall != ON
    x, room, pitch = at.x + 10, at.wide - 20, 22 if is_above else 19
    size = f"{box.parameters:,}" if box.parameters else "shared" if box.note.startswith("shares") else ""
    _write(sheet, x, at.y + 17, box.title, 14.5, room - (24 if box.mask else 0), mix(sheet.ink, hue, 0.82), bold=True)
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
        for query in range(4):
            for key in range(4):
                seen = box.mask == "full" or key < query or (box.mask == "causal" and key == query)
                ink = hue if seen else mix(sheet.ground, hue, 0.16)
                sheet.box(left + 4.6 * key, top + 4.6 * query, 3.8, 3.8, ink, corner=0.8, level=3)


def _chips(sheet: Sheet, box: Box, x: float, y: float) -> float:
    """The heads as squares in their colours, and how much room they take."""
    if not 0 < box.heads <= MOST_CHIPS:
        return 0
    pitch = min(12.0, 90 / box.heads)
    side = max(3.0, pitch - 2.5)
    for head in range(box.heads):
        sheet.box(x + head * pitch, y - side / 2, side, side, theme.head_hue(head, sheet.dark), corner=2, level=3)
    return box.heads * pitch + 5


def _glyphs(sheet: Sheet, at: Place, n: int, hue: str) -> None:
    """A square a token, at most nine."""
    shown = min(n, MOST_GLYPHS)
    wide, tall = 9 * min(shown, 3) - 2, 9 * -(-shown // 3) - 2
    for token in range(shown):
        x, y = at.middle - wide / 2 + 9 * (token % 3), at.y + 45 - tall / 2 + 9 * (token // 3)
        sheet.box(x, y, 7, 7, mix(sheet.ground, hue, 0.8), corner=1.6, level=3)


def _write(
    sheet: Sheet, x: float, y: float, text: str, size: float, room: float, ink: str = "", *, bold: bool = False,
    align: str = "left",
) -> None:  # fmt: skip
    """A line of text: smaller, then cut, where it would be wider than its room."""
    wide = LETTER * len(text)
    size = min(size, max(0.78 * size, room / wide)) if text else size
    most = int(room / (LETTER * size))
    text = text if len(text) <= most + 1 else f"{text[:most]}…"
    if text:
        sheet.words(x, y, text, ink or sheet.ink, size, bold=bold, align=align, level=3)
