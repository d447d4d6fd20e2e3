"""What is drawn of positions is what the library computes; numbers read back from the charts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from tests.training.tiny import random_model
from xformer.analysis.positions import (
    added_positions,
    attention_moved,
    bias_table,
    by_offset,
    curve_table,
    dot_products,
    pattern_table,
)
from xformer.edits import set_causal, zero_positions
from xformer.positions.alibi import alibi_slopes
from xformer.trace import record
from xformer.viz import theme
from xformer.viz.positions import MOST_HEADS, curves, moved_bars, offset_band, pattern_heatmap

TOKENS = torch.tensor([[3, 7, 1, 7, 2]])


def datasets(chart: Any) -> list[list[dict]]:
    return list(chart.to_dict()["datasets"].values())


def test_curves_are_the_positions_of_the_model() -> None:
    vectors = added_positions(random_model("encoder", positions="learned"), 11)
    assert vectors is not None
    chart = curves(curve_table(vectors, [5, 0, 12]), dark=False)
    [rows] = datasets(chart)
    assert len(rows) == 33
    for row in rows:
        assert row["value"] == vectors[row["position"], row["dimension"]].item()
    spec = chart.to_dict()
    [picked] = spec["params"]
    assert (picked["bind"], picked["select"]["fields"]) == ("legend", ["dimension"])
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domain"], scale["range"]) == ([5, 0, 12], theme.head_hues(3, dark=False))


@pytest.mark.parametrize(("trained", "shaded"), [(None, False), (7, True), (11, False)])
def test_only_positions_that_training_never_showed_are_shaded(trained: int | None, shaded: bool) -> None:
    table = curve_table(torch.zeros(11, 2), [0])
    drawn = datasets(curves(table, dark=True, trained=trained))
    shades = [rows for rows in drawn if "from" in rows[0]]
    assert shades == ([[{"from": 6.5, "to": 10}]] if shaded else [])


def test_the_band_runs_from_the_lowest_to_the_highest_pair() -> None:
    matrix = dot_products(torch.randn(7, 13, generator=torch.Generator().manual_seed(0)))
    chart = offset_band(by_offset(matrix), dark=False, title="P[i] · P[j]")
    [rows] = datasets(chart)
    for row in rows:
        along = matrix.diagonal(row["offset"])
        assert (row["low"], row["high"]) == (along.min().item(), along.max().item())
        assert row["mean"] == pytest.approx(along.mean().item(), abs=1e-12)
    band, line, dots = chart.to_dict()["layer"]
    assert (band["encoding"]["y"]["field"], band["encoding"]["y2"]["field"]) == ("low", "high")
    assert band["encoding"]["y"]["title"] == "P[i] · P[j]"
    assert line["encoding"]["y"]["field"] == dots["encoding"]["y"]["field"] == "mean"


def test_alibi_has_one_line_a_head_in_the_heads_hues() -> None:
    table = bias_table(random_model("encoder", positions="alibi", n_heads=3), 5)
    chart = curves(table, dark=True, by="head", x="offset", y="bias", legend="bottom")
    [rows] = datasets(chart)
    assert {row["head"] for row in rows} == {0, 1, 2}
    assert all(row["bias"] == pytest.approx(-float(alibi_slopes(3)[row["head"]]) * abs(row["offset"])) for row in rows)
    assert chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]["range"] == theme.head_hues(3, dark=True)


@pytest.mark.parametrize("dark", [False, True])
def test_a_pattern_is_drawn_from_0_to_1_and_masked_cells_are_grey(dark: bool) -> None:
    trace = record(random_model("encoder"), TOKENS, edits=[set_causal(True)])
    names = ["3", "7", "1", "7", "2"]
    chart = pattern_heatmap(pattern_table(trace, "encoder.0.attn", 1, names, names), dark=dark)
    [rows] = datasets(chart)
    for row in rows:
        assert row["weight"] == trace["encoder.0.attn.pattern"][0, 1, row["query"], row["key"]].item()
        assert row["allowed"] == (row["key"] <= row["query"])
    weights, masked = chart.to_dict()["layer"]
    domain = weights["encoding"]["color"]["scale"]["domain"]
    assert (domain[0], domain[-1]) == (0.0, 1.0)
    assert weights["transform"] == [{"filter": "datum.allowed"}]
    assert masked["transform"] == [{"filter": "!datum.allowed"}]
    assert masked["mark"]["color"] == theme.pick(theme.MASKED, dark)
    assert weights["encoding"]["y"]["sort"] == ["0 · 3", "1 · 7", "2 · 1", "3 · 7", "4 · 2"]


def test_the_bars_are_what_each_head_moved() -> None:
    model = random_model("encoder")
    moved = attention_moved(record(model, TOKENS), record(model, TOKENS, edits=[zero_positions()]))
    table = moved.assign(where=moved["layer"], head=moved["head"] + 1)
    chart = moved_bars(table, dark=False)
    [rows] = datasets(chart)
    assert [row["moved"] for row in rows] == moved["moved"].tolist()
    spec = chart.to_dict()["encoding"]
    assert spec["x"]["scale"]["domain"] == [0, 1]
    assert spec["color"]["scale"]["range"] == theme.head_hues(3, dark=False)
    assert spec["y"]["sort"] == [f"{row['where']} · head {row['head']}" for row in rows]


def test_of_many_heads_those_that_moved_furthest_are_drawn() -> None:
    moved = torch.rand(60, generator=torch.Generator().manual_seed(0)).tolist()
    table = pd.DataFrame(
        {"where": [f"layer {i // 12 + 1}" for i in range(60)], "head": [i % 12 + 1 for i in range(60)]}
    )
    chart = moved_bars(table.assign(moved=moved), dark=False)
    [rows] = datasets(chart)
    assert [row["moved"] for row in rows] == sorted(moved, reverse=True)[:MOST_HEADS]
    scale = chart.to_dict()["encoding"]["color"]["scale"]
    hues = theme.head_hues(12, dark=False)
    assert scale["range"] == [hues[head - 1] for head in scale["domain"]]  # each head keeps its own
