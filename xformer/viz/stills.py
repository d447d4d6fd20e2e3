"""Draw one step of a training as the player shows it: what the model reads and says, its heads, and where the step lies.

viz.film_still({700: reading})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
from jaxtyping import UInt8

from xformer.errors import InputError
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import CHIP, WIDE, Sheet
from xformer.viz.film import film_header, film_of
from xformer.viz.still_heads import LARGE, STANDS_OUT, Best, all_heads, best_head, enlarged, scale
from xformer.viz.time_line import HIGH, time_line


def film_still(
    film: bytes | Mapping[int, Reading],
    *,
    step: int | None = None,
    head: tuple[int, int] | None = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """A step of a training: the tokens it reads and says, one head large and all small, and how it learns.

    `film` is what the player is sent, or the same input's readings by their steps. It shows the last frame at or before `step`,
    or the last one of all; `head` is the (layer, head) that is enlarged, from 0. Weights are on the fixed scale from 0 to 1.
    """
    packed = film if isinstance(film, bytes) else film_of(film)
    header, sheet = film_header(packed), Sheet(dark)
    steps = [frame["step"] for frame in header["frames"]]
    at = max((i for i, one in enumerate(steps) if step is None or one <= step), default=0)
    layer, chosen = head or header["best"]
    heads = [one["heads"] for one in header["layers"]]
    if not (0 <= layer < len(heads) and 0 <= chosen < heads[layer]):
        raise InputError(f"The layers have {heads} heads, got head {chosen} of layer {layer}; for example head=(0, 0).")
    codes, colours = _planes(packed, header, at), scale(dark)
    best = [best_head(frame["scores"]) for frame in header["frames"]]
    y = _strip(sheet, header, header["frames"][at])
    y = _title(sheet, y, header, at, (layer, chosen), best[at])
    enlarged(sheet, y, header["layers"][layer], codes[layer][chosen], colours)
    width, low = all_heads(sheet, y + 28, header["layers"], codes, best[at], (layer, chosen), colours)
    y = max(y + LARGE + 8, low) + 8
    said = f"step {steps[at]:,} of {header['steps']:,}"
    sheet.words(0, y, said, sheet.ink, 14, bold=True)
    time_line(sheet, y + 12, header, at, [score for score, _, _ in best])
    return sheet.chart(max(WIDE, width), y + 12 + HIGH)


def _planes(packed: bytes, header: dict[str, Any], at: int) -> list[UInt8[np.ndarray, "head row col"]]:
    """The codes of a frame, layer by layer."""
    shapes = [(one["heads"], one["rows"], one["cols"]) for one in header["layers"]]
    sizes = [int(np.prod(shape)) for shape in shapes]
    behind = (len(header["frames"]) - at) * sum(sizes)
    frame = np.frombuffer(packed, np.uint8)[len(packed) - behind :][: sum(sizes)]
    parts = np.split(frame, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _strip(sheet: Sheet, header: dict[str, Any], frame: dict[str, Any]) -> float:
    """The lanes of tokens, in several rows where they are long; what comes back is where they end."""
    reads, says, offset = header["reads"], frame["says"], header["offset"]
    names = 12 + 6.6 * max(len(name) for name in (*(name for name, _ in reads), "says"))
    columns = max(offset + len(says), *(len(tokens) for _, tokens in reads), 1)
    in_row = min(columns, int((WIDE - names) // 27))
    cell, y = min(50.0, (WIDE - names) / in_row), 0.0
    for first in range(0, columns, in_row):
        for name, tokens in reads:
            if part := tokens[first : first + in_row]:
                sheet.words(0, y + CHIP / 2, name, sheet.muted, 13)
                for i, token in enumerate(part):
                    sheet.chip(names + i * cell, y, cell, token, "plain")
                y += CHIP + 5
        said = range(max(first, offset), min(first + in_row, offset + len(says)))
        for i in said:
            kind = "plain" if not header["judged"] else "right" if frame["right"][i - offset] else "wrong"
            share = frame["probability"][i - offset]
            sheet.chip(names + (i - first) * cell, y, cell, says[i - offset], kind, share=share)
        if said:
            sheet.words(0, y + CHIP / 2, "says", sheet.muted, 13)
            y += CHIP + 5
    return y


def _title(sheet: Sheet, y: float, header: dict[str, Any], at: int, head: tuple[int, int], best: Best) -> float:
    """Which head is enlarged, its score, and which is the best of all; what comes back is where that ends."""

    def name(layer: int, of: int) -> str:
        return f"{header['layers'][layer]['title']} · head {of + 1}"

    own = header["frames"][at]["scores"][head[0]]
    said = [f"{header['score']}: {own[head[1]]:.2f}"] if head[1] < len(own) else []
    if best[0] >= STANDS_OUT:
        said.append("★ best of all heads" if best[1:] == head else f"★ {name(*best[1:])}, {best[0]:.2f}")
    sheet.box(0, y + 9, 13, 13, theme.head_hue(head[1], sheet.dark), corner=4)
    sheet.words(22, y + 16, name(*head), sheet.ink, 17, bold=True)
    sheet.words(WIDE, y + 16, " · ".join(said), sheet.ink, 13, align="right")
    return y + 32
