"""Training curves have the numbers of their rows, and smoothing is bias-corrected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.tiny import tiny_preset
from tests.viz.drawn_file import all_rows, rows_of_layer, spec_of
from xformer.analysis.training_runs import head_table
from xformer.training.loop import iter_train
from xformer.viz import theme
from xformer.viz.training_curves import (
    ACCURACY,
    BEST,
    COLUMNS,
    LOSS,
    POINTS,
    SCORES,
    Curves,
    curve_chart,
    curves,
    curves_chart,
    every_nth,
    head_curves,
    head_frame,
    metrics_frame,
    smoothed,
)  # fmt: skip

ROWS = {
    "one": [{"step": 20 * i, "seconds": i / 4, "loss": 3.0 / i, "held_out_exact_match": i / 10} for i in range(1, 8)],
    "two": [{"step": 20 * i, "seconds": i / 2, "loss": 2.0, "held_out_exact_match": 0.5} for i in range(1, 4)],
}
COLOURS = {"one": "#111111", "two": "#222222"}


def layers(chart: Any) -> list[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Return the mark, the rows and the encoding of each layer."""
    layers = spec_of(chart)["layer"]
    return [(layer["mark"]["type"], rows_of_layer(chart, at), layer["encoding"]) for at, layer in enumerate(layers)]


def test_smoothing_is_the_bias_corrected_moving_average() -> None:
    values = np.random.default_rng(0).normal(size=17)
    for weight in (0.3, 0.9):
        weights = [np.array([weight ** (t - i) for i in range(t + 1)]) for t in range(17)]  # the latest counts most
        expected = [w @ values[: t + 1] / w.sum() for t, w in enumerate(weights)]
        np.testing.assert_allclose(smoothed(values, weight), expected, rtol=1e-12)
    np.testing.assert_array_equal(smoothed(values, 0.0), values)
    for weight in (1.0, float("nan")):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            smoothed(values, weight)


def test_thinning_keeps_the_ends_and_respects_the_limit() -> None:
    long = {"one": [{"step": i, "seconds": i / 9, "loss": float(i)} for i in range(1, 5004)]}
    frame = curves(long, "loss", smoothing=0.5)
    assert len(frame) <= POINTS + 1
    assert frame["step"].iloc[[0, -1]].tolist() == [1, 5003]
    whole = smoothed(np.arange(1.0, 5004.0), 0.5)
    np.testing.assert_allclose(frame["value"], whole[frame["step"].astype(int) - 1], rtol=1e-12)
    assert len(every_nth(frame.head(7), 400)) == 7


def test_rows_without_a_finite_number_are_left_out() -> None:
    losses = [1.0, float("nan"), float("inf"), None, "much", 2]
    rows = [{"step": 7}, *({"step": step, "loss": loss} for step, loss in enumerate(losses, 1))]
    assert curves({"one": rows}, "loss")["step"].tolist() == [1, 6]
    assert curves({}, "loss").empty
    assert len(curves({"one": rows}, "loss", x="seconds")) == 0


def test_lines_have_the_values_of_the_rows() -> None:
    x = "seconds"
    chart = curves_chart(curves(ROWS, "loss", x=x), "loss", "training loss", COLOURS, x=x)
    (first, drawn, encoding), (second, _, _) = layers(chart)
    assert (first, second) == ("line", "point")
    expected = [(name, row[x], row["loss"]) for name, rows in ROWS.items() for row in rows]
    assert [(row["run"], row[x], row["value"]) for row in drawn] == expected
    assert (encoding["x"]["field"], encoding["y"]["title"]) == (x, "training loss")
    assert encoding["color"]["scale"] == {"domain": ["two", "one"], "range": ["#222222", "#111111"]}


def test_log_scale_drops_nonpositive_values_and_never_applies_to_shares() -> None:
    rows = {"one": [{"step": i, "loss": value} for i, value in enumerate([0.0, 1e-3, 1.0])]}
    share = curves_chart(curves(ROWS, SCORES[0]), SCORES[0], "x", COLOURS, log=True)
    assert layers(share)[0][2]["y"]["scale"] == {"domain": [0.0, 1.0], "type": "linear", "nice": False}
    _, drawn, encoding = layers(curves_chart(curves(rows, "loss"), "loss", "loss", {"one": "#111111"}, log=True))[0]
    assert [row["value"] for row in drawn] == [1e-3, 1.0]
    assert encoding["y"]["scale"] == {"domain": [1e-3, 1.0], "type": "log", "nice": False}


REPORTED = [progress.row() for progress in iter_train(tiny_preset(steps=12, log_every=3), device="cpu")]
FRAME = metrics_frame(REPORTED)


def test_metrics_frame_has_reported_values_and_nan_for_malformed_ones() -> None:
    expected = [{name: pytest.approx(row[name]) for name in COLUMNS} for row in REPORTED]
    assert FRAME.to_dict("records") == expected
    frame = metrics_frame([{"step": 3, "loss": "much"}, {"step": 5, "loss": 0.25, "learning_rate": None}])
    assert frame[["step", "loss"]].fillna(-1).to_numpy().tolist() == [[3, -1], [5, 0.25]]
    assert len(metrics_frame([])) == 0


@pytest.mark.parametrize("curves", [LOSS, ACCURACY], ids=["loss", "accuracy"])
def test_chart_has_the_values_axes_and_hues_of_its_curves(curves: Curves) -> None:
    chart = curve_chart(FRAME, curves, steps=12)
    lines = chart.to_dict(validate=False)["layer"][0]["encoding"]
    for name in curves.names:
        assert [row[name] for row in all_rows(chart)] == pytest.approx(FRAME[name].tolist())
    assert (lines["x"]["title"], lines["x"]["scale"]["domain"], lines["y"]["title"]) == ("step", [0, 12], curves.axis)
    assert lines["color"]["scale"] == {"range": list(curves.hues), "domain": list(curves.names.values())}
    if curves.share:
        assert lines["y"]["scale"]["domain"] == [0, 1]


def test_head_frame_has_a_column_per_head_and_the_best_score() -> None:
    table = head_table({10: {"a": [0.1, 0.4], "b": [0.2]}, 20: {"a": [0.3, 0.2], "b": [0.9]}})
    wide, columns = head_frame(table)
    found = wide[["step", columns["a", 1], columns["b", 0], BEST]]
    assert found.to_numpy().tolist() == [[10, 0.4, 0.2, 0.4], [20, 0.2, 0.9, 0.9]]
    curves = head_curves("anti-diagonal", {column: str(pair) for pair, column in columns.items()}, [0, 1, 0])
    assert curves.hues == (theme.HEAD_HUES[0], theme.HEAD_HUES[1], theme.HEAD_HUES[0])
    curve_chart(wide, curves, steps=20).to_dict(validate=False)
