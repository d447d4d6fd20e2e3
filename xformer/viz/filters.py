"""Draw what a patch of an image is turned into: the filters of its embedding, and the directions that they all lie in.

viz.patch_filters(reading)
viz.filter_components(reading)
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from xformer.analysis.images import filter_components as components_table
from xformer.analysis.images import patch_filters as filters_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.images import Chart, tile_map

ACROSS, PIXELS_A_WEIGHT = 16, 10.5
"""Sixteen filters of 2 × 2 in a row fit a window of usual width."""
COMPONENTS_ACROSS, PIXELS_A_COMPONENTS_WEIGHT = 2, 30.0
APART = 0.8
"""Between two filters, in weights."""


def patch_filters(reading: Reading, *, dark: bool = False) -> Chart:
    """The filters of `analysis.patch_filters` in rows, orange below zero and blue above."""
    return _in_rows(filters_table(reading), ACROSS, PIXELS_A_WEIGHT, dark)


def filter_components(reading: Reading, *, dark: bool = False) -> Chart:
    """The directions of `analysis.filter_components`, drawn alike and larger."""
    return _in_rows(components_table(reading), COMPONENTS_ACROSS, PIXELS_A_COMPONENTS_WEIGHT, dark)


def _in_rows(table: pd.DataFrame, across: int, unit: float, dark: bool) -> Chart:
    number = pd.factorize(table["filter"])[0]
    size = table["pixel x"].max() + 1 + APART
    x, y = number % across * size + table["pixel x"], number // across * size + table["pixel y"]
    frame = table.assign(x=x, x2=x + 1, y=y, y2=y + 1, itself=False)
    tooltip = [
        alt.Tooltip("filter:N"),
        alt.Tooltip("pixel y:Q"),
        alt.Tooltip("pixel x:Q"),
        alt.Tooltip("weight:Q", format=".6f"),
    ]
    return tile_map(frame, "weight", theme.signed_limit(table["weight"].to_numpy()), tooltip, dark, unit)
