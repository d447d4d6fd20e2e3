"""Tests of the helpers shared by charts."""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from tests.viz.drawn_file import maps_of, words
from xformer.viz import theme
from xformer.viz.charts import cell_colours, layered, numbers, pixel_axes, small_maps, token_lanes
from xformer.viz.export import svg

TABLE = pd.DataFrame({"x": [1, 2], "y": [0.5, 0.25]})


def charts() -> list[alt.Chart]:
    base = alt.Chart(TABLE).encode(alt.X("x:Q"), alt.Y("y:Q"))
    return [base.mark_line(), base.mark_point(size=80), base.transform_filter("datum.x > 1").mark_text()]


def plain(chart: Any) -> str:
    """Return the chart without the names that Altair generates."""
    return re.sub(r"view_\w+", "view", str(chart.to_dict()))


@pytest.mark.parametrize("more", [[], [alt.Chart(pd.DataFrame({"x": [3]})).mark_rule().encode(alt.X("x:Q"))]])
def test_layered_equals_altair_layer(more: list[alt.Chart]) -> None:
    ours, theirs = layered(*charts(), *more, height=90), alt.layer(*charts(), *more).properties(height=90)
    assert plain(ours) == plain(theirs)
    assert ours.to_dict()["datasets"] == theirs.to_dict()["datasets"]


def test_cells_have_the_nearest_colour_of_the_scale() -> None:
    stops = ["#ffffff", "#888888", "#000000"]
    assert cell_colours(stops, [-9, 0, np.nan, 1, 9, np.inf], 0, 1) == [stops[at] for at in (0, 0, 1, 2, 2, 2)]


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_contrast_with_their_cells_and_are_left_out_of_crowded_maps(dark: bool) -> None:
    cells = alt.Chart(TABLE.assign(cell_colour=["#201253", theme.SEQUENTIAL[0]])).encode(alt.X("x:O"))
    drawn = svg(numbers(cells, "y:Q", size=15), dark=dark)
    assert {"0.5", "0.25"} <= set(words(drawn))
    assert re.findall(r'font-size="15px" fill="(#\w+)"', drawn) == (
        [theme.TEXT, "#ffffff"] if dark else ["#ffffff", theme.TEXT]
    )
    assert numbers(cells, "y:Q", shown=False) == []


def test_token_lanes_show_verdicts_without_colour_and_probabilities() -> None:
    rows = [("says", 0, "seven", "wrong", 0.25), ("says", 1, "7", "right", 1.0), ("reads", 0, "x", "plain", None)]
    tokens = pd.DataFrame(rows, columns=["lane", "at", "token", "kind", "probability"]).astype({"probability": float})
    drawn = svg([layered(*token_lanes(tokens, columns=2, title="step", hues={"says": "#010101"}))])
    assert {"seven", "0.25 ✗", "7", "1.00 ✓", "x", "reads", "says"} <= set(words(drawn))
    [wrong] = re.findall(r'<path[^>]*stroke="#d55e00"[^>]*>', drawn)
    assert 'stroke-dasharray="4,3"' in wrong, "wrong tokens need a dashed border"


def test_small_maps_draw_masked_and_broken_cells_in_their_frame() -> None:
    frame = {"x": 20, "y": 10, "x2": 60, "y2": 40}
    values = np.array([[0.0, 0.5, 1.0, np.nan], [np.inf, 0.25, 0.75, 1.0]])
    sheet = layered(small_maps([frame], [values], pixel_axes(200, 100))).properties(width=200, height=100)
    assert np.nan_to_num(maps_of(sheet)[0], posinf=9) == pytest.approx(np.nan_to_num(values, posinf=9), abs=0.01)
    assert {theme.MASKED, theme.BROKEN} <= set(re.findall(r'fill="(#\w+)"', svg([sheet])))
