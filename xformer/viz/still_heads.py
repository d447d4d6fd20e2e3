"""The heads of one step of a training on a sheet: one large with its tokens, and all small beside it.

enlarged(sheet, y, layer, codes, colours)
all_heads(sheet, y, layers, planes, best, head, colours)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from xformer.blocks import block_max, factor
from xformer.viz import theme
from xformer.viz.attention_patterns import HEAD_GRID_MOST_CELLS
from xformer.viz.charts import WIDE, Sheet
from xformer.viz.packing import LEVELS, MASKED, NAN

LARGE, BESIDE, GAP, TITLE = 380, 22, 6, 16
"""CSS pixels: of the enlarged head, between it and the others, between two heads, and for a layer's name."""
STANDS_OUT = 0.5
"""From this score on a head is called the best: below it, chance can be."""
BROKEN = "#d6006e"
"""A cell that is not a number: loud."""
Best = tuple[float, int, int]
"""A score with its layer and head, from 0."""


def scale(dark: bool) -> list[str]:
    """The colour of every code of a weight."""
    return [*theme.resample(theme.sequential(dark), LEVELS + 1), BROKEN, theme.pick(theme.MASKED, dark)]


def best_head(scores: Sequence[Sequence[float]]) -> Best:
    """The best score with its layer and head; −1 where none has a score."""
    found = ((score, -layer, -head) for layer, heads in enumerate(scores) for head, score in enumerate(heads))
    score, layer, head = max(found, default=(-1.0, 0, 0))
    return score, -layer, -head


def enlarged(
    sheet: Sheet, y: float, layer: dict[str, Any], codes: UInt8[np.ndarray, "row col"], colours: list[str]
) -> None:
    """One head with its tokens."""
    queries, keys = layer["queryLabels"], layer["keyLabels"]
    left, top = 76 if any(len(text) > 3 for text in queries) else 62, y + 50
    wide = float(LARGE - left - 4)
    tall = min(wide * 1.05, max(60.0, wide * len(queries) / len(keys)))
    _cells(sheet, codes, colours, (left, top, wide, tall))
    sheet.box(left - 0.5, top - 0.5, wide + 1, tall + 1, edge=sheet.rule, level=1)
    row, column = tall / len(queries), wide / len(keys)
    for i in range(0, len(queries), max(1, -int(-13 // row))):
        middle, text = top + (i + 0.5) * row, _short(queries[i], 5)
        size = min(13.0, 10 + row / 12)
        sheet.words(left - 6, middle, text, sheet.ink, size, align="right")
        sheet.words(left - 11 - 0.62 * size * len(text), middle, str(i), sheet.muted, 9.5, align="right")
    size = min(13.0, 10 + column / 12)
    widest = 0.62 * size * max(len(_short(text, 4)) for text in keys)
    for i in range(0, len(keys), max(1, -int(-(widest + 1) // column))):
        middle = left + (i + 0.5) * column
        sheet.words(middle, top - 9, _short(keys[i], 4), sheet.ink, size, align="center")
        sheet.words(middle, top - 23, str(i), sheet.muted, 9.5, align="center")
    sheet.words(left, top - 41, "key: what it looks at →", sheet.muted, 11)
    sheet.words(8, top + tall, "query: who looks →", sheet.muted, 11, upwards=True)


def all_heads(
    sheet: Sheet, y: float, layers: Sequence[dict[str, Any]], codes: Sequence[UInt8[np.ndarray, "head row col"]],
    best: Best, head: tuple[int, int], colours: list[str],
) -> tuple[float, float]:  # fmt: skip
    """Every head small, the enlarged one framed and the best one starred; what comes back is where they end."""
    n_heads = sum(len(one) for one in codes)
    most = max(len(one) for one in codes)
    if n_heads == 1:
        return 0, 0
    left = LARGE + BESIDE
    room = (WIDE - left - GAP * (most - 1)) // most, (LARGE - 36) // len(layers) - TITLE - GAP
    side = max(16, min(200, *room))
    cells = max(4, isqrt(HEAD_GRID_MOST_CELLS // n_heads))
    for number, planes in enumerate(codes):
        top = y + number * (side + TITLE + GAP)
        sheet.words(left + 2, top + 8, layers[number]["title"], sheet.muted, 11.5, bold=True)
        for of, plane in enumerate(planes):
            x, is_large = left + of * (side + GAP) + 3, (number, of) == head
            _cells(sheet, _pooled(plane, cells), colours, (x, top + TITLE, side - 2, side - 2))
            edge = theme.head_hue(of, sheet.dark) if is_large else sheet.rule
            sheet.box(x - 1, top + TITLE - 1, side, side, edge=edge, thick=3 if is_large else 1, level=1)
            if best[0] >= STANDS_OUT and best[1:] == (number, of):
                sheet.dot(x + side - 12, top + TITLE + 10, 9, sheet.ground, level=2)
                sheet.words(x + side - 12, top + TITLE + 11, "★", sheet.ink, 13, bold=True, align="center", level=3)
    return left + most * (side + GAP), y + len(layers) * (side + TITLE + GAP)


def _cells(sheet: Sheet, codes: UInt8[np.ndarray, "row col"], colours: list[str], box: tuple[float, ...]) -> None:
    """One head's weights into a box (x, y, width, height)."""
    x, y, wide, tall = box
    rows, cols = codes.shape
    for (row, col), code in np.ndenumerate(codes):
        sheet.box(x + col * wide / cols, y + row * tall / rows, wide / cols, tall / rows, colours[code], thick=0)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _pooled(codes: UInt8[np.ndarray, "row col"], side: int) -> UInt8[np.ndarray, "row col"]:
    """At most `side` cells on either axis: the largest weight of a block stands for it; masked is what is masked all over."""
    weights: Float[np.ndarray, "row col"] = np.where(codes == MASKED, -1.0, codes)
    weights[codes == NAN] = np.nan
    for axis in (0, 1):
        weights = block_max(weights, factor(weights.shape[axis], side), axis)
    return np.where(weights < 0, MASKED, np.nan_to_num(weights, nan=NAN)).astype(np.uint8)
