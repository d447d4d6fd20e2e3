"""What is drawn of the first principles is what was computed; numbers read back from the charts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xformer.analysis import principles
from xformer.viz import theme
from xformer.viz.principles import (
    cost_chart,
    frame_row,
    matrix_chart,
    saturation_chart,
    variance_chart,
    weight_bars,
)

WORDS = ["the", "cat", "saw", "the", "dog"]


def datasets(chart: Any) -> list[list[dict]]:
    return list(chart.to_dict()["datasets"].values())


@pytest.mark.parametrize("dark", [False, True])
def test_a_matrix_has_its_numbers_in_its_cells(dark: bool) -> None:
    x = principles.word_vectors(WORDS, 3)
    names = principles.numbered(WORDS)
    chart = matrix_chart(
        principles.matrix_frame(x, names, ["x1", "x2", "x3"]), kind="signed", dark=dark, chosen=names[3]
    )
    rows = max(datasets(chart), key=len)
    assert len(rows) == 15
    for row in rows:
        value = x[names.index(row["row"]), int(row["column"][1]) - 1].item()
        assert row["value"] == pytest.approx(value, rel=1e-12)
        assert row["exact"] == f"{value:.6f}"
        assert float(row["shown"].replace("−", "-")) == pytest.approx(value, abs=0.005 + 1e-9)
    spec = chart.to_dict()
    domain = spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert domain[-1] == -domain[0] == pytest.approx(x.abs().max().item())
    assert spec["layer"][2]["transform"] == [{"filter": {"equal": "3 the", "field": "row"}}]
    other = matrix_chart(principles.matrix_frame(x, names, ["x1", "x2", "x3"]), kind="signed", dark=dark).to_dict()
    framed = frame_row(other, "3 the")["layer"][2]
    assert framed["transform"] == spec["layer"][2]["transform"]


def test_shares_run_from_0_to_1_and_forbidden_cells_are_grey() -> None:
    scores = torch.tensor([[0.5, float("-inf")], [0.0, 0.0]])
    names = ["0 a", "1 b"]
    for matrix, kind in ((scores, "signed"), (scores.softmax(dim=-1), "share")):
        chart = matrix_chart(
            principles.matrix_frame(matrix, names, names), kind=kind, dark=False, struck=kind == "share"
        )
        [rows] = datasets(chart)
        hidden = [row["hidden"] for row in rows]
        assert hidden == [False, True, False, False]
        assert rows[1]["shown"] == ("−∞" if kind == "signed" else "0.00")
    layers = chart.to_dict()["layer"]
    assert layers[0]["encoding"]["color"]["scale"]["domain"][0] == 0.0
    assert layers[0]["encoding"]["color"]["scale"]["domain"][-1] == 1.0
    assert layers[1]["mark"]["color"] == theme.MASKED[0]
    assert layers[1]["transform"] == [{"filter": "datum.hidden"}]


def test_variances_lie_beside_the_lines_d_and_1() -> None:
    frame = principles.product_variances([2, 16, 128], 200, seed=1)
    theory, measured = datasets(variance_chart(frame, dark=False))
    assert [row["value"] for row in theory] == [2.0, 16.0, 128.0, 1.0, 1.0, 1.0]
    assert [row["value"] for row in measured] == [*frame["variance"], *frame["scaled"]]
    assert [row["what"] for row in measured] == ["q · k"] * 3 + ["q · k / √d"] * 3
    [rule, *_] = datasets(variance_chart(frame, dark=True, d=16))
    assert rule == [{"d": 16}]


@pytest.mark.parametrize(("what", "top"), [("largest", 1.0), ("gradient", 0.25)])
def test_saturation_is_drawn_up_to_its_bound(what: Any, top: float) -> None:
    frame = principles.saturation([2, 16], 5, 20, seed=1)
    chart = saturation_chart(frame, what, dark=False)
    [rows] = datasets(chart)
    assert [row[what] for row in rows] == frame[what].tolist()
    encoding = chart.to_dict()["layer"][0]["encoding"]["y"]
    assert (encoding["field"], encoding["scale"]["domain"]) == (what, [0, top])


def test_bars_are_weights_on_the_fixed_scale() -> None:
    import pandas as pd

    scores, weights = principles.one_row(8, 5, scaled=False)
    frame = pd.DataFrame({"key": range(5), "score": scores.tolist(), "weight": weights.tolist()})
    chart = weight_bars(frame, dark=False)
    [rows] = datasets(chart)
    assert [row["weight"] for row in rows] == weights.tolist()
    assert chart.to_dict()["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 1]


def test_costs_are_stacked_by_part_with_the_measured_sum_beside() -> None:
    frame = principles.costs(5, 4, 2)
    chart = cost_chart(frame, dark=False)
    bars = next(rows for rows in datasets(chart) if len(rows) == 12)
    assert [row["count"] for row in bars] == frame["count"].tolist()
    words = next(rows for rows in datasets(chart) if "shown" in rows[0])
    assert [row["shown"] for row in words] == ["520", "520", "1,040"]
    domain = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert set(domain) == set(frame["part"])
