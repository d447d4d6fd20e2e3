"""Draw the vectors of an input: their numbers as a signed heatmap, and how alike any two of them are.

viz.vectors(reading, part="sum")
viz.cosines(reading, part="sum")
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.embeddings import cosines as cosines_table
from xformer.analysis.embeddings import vectors as vectors_table
from xformer.reading import Reading
from xformer.viz import theme

MOST_CELLS = 5000
"""What one Altair heatmap draws: beyond it a browser slows down, and Altair in a notebook refuses."""


def every(n_rows: int, n_columns: int) -> int:
    """Which columns a heatmap draws, so that it has at most `MOST_CELLS`: all of them (1), every 2nd (2), …"""
    return max(1, math.ceil(n_columns / max(1, MOST_CELLS // max(1, n_rows))))


def rows_height(n_rows: int, most: int = 300, around: int = 70) -> int:
    """Pixels for a heatmap with its axes (`around`): rows of up to 34 pixels, all of them in `most` where they fit."""
    return round(n_rows * max(4.0, min(34.0, most / max(1, n_rows)))) + around


def vector_heatmap(
    table: pd.DataFrame,
    *,
    dark: bool,
    limit: float | None = None,
    rows: str = "position · token",
    columns: str = "dimension of the vector",
    height: int = 300,
    legend: bool = True,
) -> alt.Chart:
    """Vectors as rows [position × dimension], orange below zero and blue above, ±`limit` at the ends of the scale.

    `table` has position, token, dimension, value (`vector_table`). Of more than `MOST_CELLS` every 2nd, 3rd, … column is
    drawn (see `every`).
    """
    limit = theme.signed_limit(table["value"].to_numpy()) if limit is None else limit
    n_rows, n_columns = len(set(table["position"])), len(set(table["dimension"]))
    table = table.query(f"dimension % {every(n_rows, n_columns)} == 0")
    labelled = table.assign(
        row=[f"{p} · {t}" if t else str(p) for p, t in zip(table["position"], table["token"], strict=True)]
    )
    return (
        alt.Chart(labelled)
        .mark_rect()
        .encode(
            x=alt.X("dimension:O", title=columns, axis=_sparse()),
            y=alt.Y("row:N", title=rows, sort=list(dict.fromkeys(labelled["row"])), axis=_sparse()),
            color=_signed("value:Q", limit, dark, "value", legend),
            tooltip=[
                alt.Tooltip("position:O"),
                *([alt.Tooltip("token:N")] if any(labelled["token"]) else []),
                alt.Tooltip("dimension:O"),
                alt.Tooltip("value:Q", format=".7g"),
            ],
        )
        .properties(height=rows_height(n_rows, height))
    )


def vectors(
    reading: Reading,
    *,
    part: str = "tokens",
    stack: str | None = None,
    positions: Sequence[int] | None = None,
    limit: float | None = None,
    dark: bool = False,
) -> alt.Chart:
    """The numbers of `analysis.vectors`, a row a position; colours run from −`limit` to `limit`, or to the largest."""
    table = vectors_table(reading, part=part, stack=stack, positions=positions)
    return vector_heatmap(table, limit=limit, dark=dark)


def cosines(
    reading: Reading,
    *,
    part: str = "tokens",
    stack: str | None = None,
    positions: Sequence[int] | None = None,
    dark: bool = False,
) -> alt.Chart:
    """The cosine of every two of the same vectors, always from −1 (orange) to 1 (blue).

    Unless `positions` are given, every 2nd, 3rd, … position is drawn, so that there are at most `MOST_CELLS` pairs.
    """
    if positions is None:
        n = len(reading.tokens_of(stack))
        positions = range(0, n, -(-n // math.isqrt(MOST_CELLS)))
    table = cosines_table(reading, part=part, stack=stack, positions=positions)
    labelled = table.assign(
        one=[f"{p} · {t}" for p, t in zip(table["position"], table["token"], strict=True)],
        other=[f"{p} · {t}" for p, t in zip(table["other position"], table["other token"], strict=True)],
    )
    order = list(dict.fromkeys(labelled["one"]))
    return (
        alt.Chart(labelled)
        .mark_rect()
        .encode(
            x=alt.X("other:N", title="position · token", sort=order, axis=_sparse(-90)),
            y=alt.Y("one:N", title="position · token", sort=order, axis=_sparse()),
            color=_signed("cosine:Q", 1.0, dark, "cosine", True),
            tooltip=[
                alt.Tooltip("one:N", title="token"),
                alt.Tooltip("other:N", title="other token"),
                alt.Tooltip("cosine:Q", format=".7f"),
            ],
        )
        .properties(height=rows_height(len(order), around=100))
    )


def _signed(field: str, limit: float, dark: bool, title: str, legend: bool) -> alt.Color:
    scale = alt.Scale(**theme.vega_scale(theme.diverging(dark), -limit, limit))
    return alt.Color(
        field, title=title, scale=scale, legend=alt.Legend(gradientLength=130, format=".2~g") if legend else None
    )


def _sparse(angle: int = 0) -> alt.Axis:
    """Labels that make way for each other instead of overlapping."""
    return alt.Axis(labelAngle=angle, labelOverlap="parity", ticks=False, domain=False, labelLimit=90)
