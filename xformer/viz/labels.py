"""Which labels of a scatter plot have room, and on which side of their points: labels that collide cannot be read.

Vega-Lite places no labels by itself. Here each takes the first free side of its point, in the order in which they are given,
and one that has no free side is left out; whoever hovers over the point still reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
from jaxtyping import Float

SIDES = ("above", "right", "below", "left")
"""In the order in which they are tried; "" where none is free."""
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
    """The side of `SIDES` for the label of each point, or "".

    The points fill `width` × `height` pixels; `size` is the font's, `gap` a point's radius. The labels of points that are
    `first` are always drawn, and go before the others.
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
    """A layer of text for each side, of a chart whose table has the sides in `column`."""
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
