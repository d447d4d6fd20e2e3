"""Draw one little attention map of each of many models, side by side: the lottery of training, as it happens.

viz.map_grid(maps, names, solved)

A map travels as a string, a letter a cell, and is taken apart in the browser: 64 maps of 15 × 15 cells are 15 kB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from xformer.blocks import block_max, factor
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.packing import LEVELS, NAN

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
GREY = "."
WIDE, GAP, TITLE = 720, 14, 18
"""CSS pixels: of all maps of a row, between two maps, and for a map's name."""
SMALLEST, LARGEST = 40, 150
SIDE = 24
"""Most cells of a map on either axis; beyond it the largest weight of a block stands for all of it."""


def map_grid(
    maps: UInt8[np.ndarray, "member query key"],
    names: Sequence[str],
    solved: Sequence[bool] | None = None,
    *,
    chosen: int | None = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """A map a member in rows of at most eight, under its name; rows of a map are queries, columns are keys.

    Cells are bytes as in a film's planes: a weight w from 0 to 1 is round(253 w), 254 is no number, 255 is masked. A member
    that solved the task has a check mark and a frame in the colour of what is right, the `chosen` one (from 0) a thick frame.
    """
    n_members = len(names)
    won = [False] * n_members if solved is None else list(solved)
    columns = min(8, n_members)
    side = min(LARGEST, max(SMALLEST, (WIDE - GAP * columns) // columns))
    small = np.where(maps < NAN, maps.astype(float), -np.inf)  # a block is masked where all of it is
    for axis in (1, 2):
        small = block_max(small, factor(small.shape[axis], SIDE), axis)
    tall, wide = (size * side / max(small.shape[1:]) for size in small.shape[1:])
    frames = [
        {
            "member": member, "name": f"{name} {theme.RIGHT.mark}" if won[member] else name, "won": won[member],
            "x": member % columns * (side + GAP), "y": TITLE + member // columns * (side + GAP + TITLE),
            "x2": member % columns * (side + GAP) + wide, "y2": TITLE + member // columns * (side + GAP + TITLE) + tall,
        }
        for member, name in enumerate(names)
    ]  # fmt: skip
    cells = [{**frame, "cells": "".join(_letters(plane))} for frame, plane in zip(frames, small, strict=True)]
    width = columns * (side + GAP)
    height = -(-n_members // columns) * (side + GAP + TITLE)
    across, down = (alt.Scale(domain=domain, nice=False) for domain in ([0, width], [height, 0]))
    x, y = alt.X("x:Q", scale=across, axis=None), alt.Y("y:Q", scale=down, axis=None)
    colour = alt.Color(
        "weight:Q",
        scale=alt.Scale(**theme.vega_scale(theme.sequential(dark), 0, 1)),
        title="weight",
        legend=alt.Legend(orient="bottom", direction="horizontal", gradientLength=160, values=[0, 0.5, 1]),
    )
    grey = alt.condition("datum.weight >= 0", colour, alt.value(theme.pick(theme.MASKED, dark)))
    n_rows, n_columns = small.shape[1:]
    drawn = (
        alt.Chart(pd.DataFrame(cells))
        .transform_calculate(letter="split(datum.cells, '')", cell=f"sequence({n_rows * n_columns})")
        .transform_flatten(["letter", "cell"])
        .transform_calculate(
            weight=f"indexof('{LETTERS}', datum.letter) / {len(LETTERS) - 1}",
            left=f"datum.x + datum.cell % {n_columns} * {wide / n_columns}",
            top=f"datum.y + floor(datum.cell / {n_columns}) * {tall / n_rows}",
        )
        .transform_calculate(right=f"datum.left + {wide / n_columns}", bottom=f"datum.top + {tall / n_rows}")
        .mark_rect(strokeWidth=0)
        .encode(
            x=alt.X("left:Q", scale=across, axis=None),
            y=alt.Y("top:Q", scale=down, axis=None),
            x2=alt.X2("right:Q"),
            y2=alt.Y2("bottom:Q"),
            color=alt.ColorValue(**grey),
        )
    )
    click = alt.selection_point(name="member", fields=["member"], on="click", clear=False)
    right, ink = theme.pick(theme.RIGHT.colour, dark), theme.pick(theme.TEXT, dark)
    stroke = alt.condition("datum.won", alt.value(right), alt.value(ink))
    thick = alt.condition(f"datum.member == {-1 if chosen is None else chosen}", alt.value(4), alt.value(1.5))
    base = alt.Chart(pd.DataFrame(frames))
    layers: list[Any] = [
        drawn,
        base.mark_rect(fillOpacity=0, cursor="pointer")
        .encode(
            x,
            y,
            alt.X2("x2:Q"),
            alt.Y2("y2:Q"),
            stroke=alt.StrokeValue(**stroke),
            strokeWidth=alt.StrokeWidthValue(**thick),
            tooltip=[alt.Tooltip("name:N", title="member"), alt.Tooltip("won:N", title="solved")],
        )
        .add_params(click),
        base.mark_text(align="left", baseline="bottom", dy=-3, fontSize=12).encode(
            x, y, text=alt.Text("name:N"), color=alt.ColorValue(**stroke)
        ),
    ]
    return layered(*layers, width=width, height=height).resolve_scale(color="independent")


def _letters(plane: Float[np.ndarray, "query key"]) -> list[str]:
    """A letter a cell, row by row."""
    top = len(LETTERS) - 1
    return [LETTERS[round(code / LEVELS * top)] if code >= 0 else GREY for code in plane.ravel().tolist()]
