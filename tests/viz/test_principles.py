"""What is drawn of the first principles is what was computed; numbers read back from the charts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.viz.drawn_file import ends_of
from xformer import viz
from xformer.analysis.principles import (
    AFTER,
    BEFORE,
    WIDTHS,
    ZERO,
    Sentence,
    attention_costs,
    product_variances,
    softmax_row,
    softmax_saturation,
)
from xformer.viz import theme

SENTENCE = Sentence("the cat saw the dog", d=4)


def datasets(chart: Any) -> list[list[dict]]:
    return list(chart.to_dict(validate=False)["datasets"].values())


def test_a_matrix_has_its_numbers_in_its_cells() -> None:
    mixed = SENTENCE.average()
    chart = viz.matrix(mixed, which="x", row=3, dark=True)
    [rows] = datasets(chart)
    assert len(rows) == 20
    for row in rows:
        value = mixed.x[list(mixed.names).index(row["row"]), int(row["column"][1]) - 1].item()
        assert row["value"] == pytest.approx(value, rel=1e-12)
        assert row["exact"] == f"{value:.6f}"
        assert float(row["shown"].replace("−", "-")) == pytest.approx(value, abs=0.005 + 1e-9)
    limit = mixed.x.abs().max().item()
    assert ends_of(chart) == pytest.approx((-limit, limit))
    assert chart.to_dict(validate=False)["layer"][2]["transform"] == [{"filter": {"equal": "3 the", "field": "row"}}]


def test_shares_run_from_0_to_1_and_forbidden_cells_are_grey() -> None:
    mixed = SENTENCE.attention(mask=BEFORE)
    for which, written in (("scores", "−∞"), ("weights", "0.00")):
        chart = viz.matrix(mixed, which=which)
        [rows] = datasets(chart)
        assert [row["hidden"] for row in rows] == [at % 5 > at // 5 for at in range(25)]
        assert rows[1]["shown"] == written
    assert ends_of(chart) == (0.0, 1.0)
    hidden_layer = chart.to_dict(validate=False)["layer"][1]
    assert hidden_layer["mark"]["color"] == theme.MASKED[0]
    assert hidden_layer["transform"] == [{"filter": "datum.hidden"}]
    hidden = {
        mask: sum(row["hidden"] for row in datasets(viz.matrix(SENTENCE.attention(mask=mask), which="weights"))[0])
        for mask in (AFTER, ZERO)
    }
    assert hidden == {AFTER: 10, ZERO: 0}  # a score of 0 forbids nothing


def test_variances_lie_beside_the_lines_d_and_1() -> None:
    frame = product_variances(seed=1)
    theory, measured = datasets(viz.product_variances(seed=1))
    assert [row["value"] for row in theory] == [*map(float, WIDTHS), *(1.0 for _ in WIDTHS)]
    assert [row["value"] for row in measured] == [*frame["variance"], *frame["scaled"]]
    assert [row["what"] for row in measured] == ["q · k"] * len(WIDTHS) + ["q · k / √d"] * len(WIDTHS)
    [rule, *_] = datasets(viz.product_variances(seed=1, d=16, dark=True))
    assert rule == [{"d": 16}]


@pytest.mark.parametrize(("what", "top"), [("largest", 1.0), ("gradient", 0.25)])
def test_saturation_is_drawn_up_to_its_bound(what: Any, top: float) -> None:
    frame = softmax_saturation(seed=1)
    chart = viz.softmax_saturation(what=what, seed=1)
    [rows] = datasets(chart)
    assert [row[what] for row in rows] == frame[what].tolist()
    encoding = chart.to_dict(validate=False)["layer"][0]["encoding"]["y"]
    assert (encoding["field"], encoding["scale"]["domain"]) == (what, [0, top])


def test_bars_are_the_weights() -> None:
    [rows] = datasets(viz.softmax_row(d=8, scaled=False))
    assert [row["weight"] for row in rows] == softmax_row(d=8, scaled=False)["weight"].tolist()


def test_costs_are_stacked_by_part_with_the_measured_sum_beside() -> None:
    frame = attention_costs(n_tokens=5, d_model=4, n_heads=2)
    chart = viz.attention_costs(n_tokens=5, d_model=4, n_heads=2)
    bars = next(rows for rows in datasets(chart) if len(rows) == 12)
    assert [row["count"] for row in bars] == frame["count"].tolist()
    words = next(rows for rows in datasets(chart) if "shown" in rows[0])
    assert [row["shown"] for row in words] == ["520", "520", "1,040"]
    domain = chart.to_dict(validate=False)["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert set(domain) == set(frame["part"])
