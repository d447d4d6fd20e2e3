"""The time line of a training on a sheet: how it learns over the steps, and where the shown step lies.

time_line(sheet, y, header, at, best)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xformer.viz import theme
from xformer.viz.charts import WIDE, Sheet

HIGH, LEFT, RIGHT, TOP, BOTTOM = 80, 34, 12, 20, 19
"""CSS pixels of the time line: its height, and what is around its curves."""
UNITS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]


def time_line(sheet: Sheet, y: float, header: dict[str, Any], at: int, best: Sequence[float]) -> None:
    """The best head's score in each frame and exact match over the steps, what is marked there, and where the shown step is."""
    steps, frames = max(1, header["steps"]), header["frames"]
    floor, wide = y + HIGH - BOTTOM, WIDE - LEFT - RIGHT

    def place(step: float, value: float) -> tuple[float, float]:
        return LEFT + wide * step / steps, floor - (HIGH - TOP - BOTTOM) * value

    sheet.box(LEFT, y + TOP, wide, HIGH - TOP - BOTTOM, sheet.faint)
    for value in (0, 0.5, 1):
        sheet.words(LEFT - 6, place(0, value)[1], f"{value:g}", sheet.muted, 10.5, align="right")
        sheet.line([place(0, value), place(steps, value)], sheet.rule, dash="2 3" if value == 0.5 else "")
    scores = [(frame["step"], score) for frame, score in zip(frames, best, strict=True)]
    curves = [("exact match", header["exact"], 1, 2.0)]
    curves += [(f"best {header['score']} score", scores, 0, 2.5)] * (max(best) >= 0)
    edge = float(WIDE)
    for name, values, hue, thick in curves:
        if not values:
            continue
        ink = theme.head_hue(hue, sheet.dark)
        points = [place(step, max(0.0, value)) for step, value in values]
        sheet.line(points, ink, thick, level=1)
        for point in points if len(points) < 40 else ():
            sheet.dot(*point, thick * 0.9, ink, level=1)
        sheet.words(edge, y - 12, name, sheet.muted, 12.5, align="right")
        sheet.box(edge - 6.8 * len(name) - 24, y - 13.5, 16, 3, ink)
        edge -= 6.8 * len(name) + 40
    for step in [frame["step"] for frame in frames]:
        sheet.box(place(step, 0)[0] - 0.5, floor, 1, 4, sheet.muted)
    each = next((unit for unit in UNITS if wide * unit / steps > 64), steps)
    for step in range(0, steps + 1, each):
        x = place(step, 0)[0]
        is_last = x > WIDE - 24  # it stays inside
        sheet.words(
            WIDE - 1 if is_last else x,
            y + HIGH - 7,
            f"{step:,}",
            sheet.muted,
            10.5,
            align="right" if is_last else "center",
        )
    edge = -100.0
    for step, words in sorted(header["marks"]):
        x, long = place(step, 0)[0], 6.9 * len(words)
        sheet.line([(x, y + TOP - 4), (x, floor)], sheet.ink, 1.25, dash="4 3", level=2)
        start = max(edge + 14, min(x - 4, WIDE - long - 4))
        if start + long <= WIDE:
            sheet.words(start, y + TOP - 13, words, sheet.ink, 11.5, bold=True, level=2)
            edge = start + long
    x = place(frames[at]["step"], 0)[0]
    sheet.line([(x, y + TOP), (x, floor)], sheet.ground, 6, level=3)
    sheet.line([(x, y + TOP), (x, floor)], sheet.primary, 3, level=4)
    sheet.dot(x, floor, 8, sheet.primary, edge=sheet.ground, level=5)
