"""The curves on the screen are the numbers that were reported; what is marked is where it was."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from tests.training.tiny import tiny_preset
from xformer.analysis.training_runs import head_table
from xformer.training.loop import iter_train
from xformer.viz import theme
from xformer.viz.training_curves import (
    ACCURACY,
    BEST,
    COLUMNS,
    GRADIENT,
    LOSS,
    RATE,
    Curves,
    curve_chart,
    domain_of,
    every_nth,
    head_curves,
    head_frame,
    metrics_frame,
    with_marks,
)  # fmt: skip

DARK = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def reported() -> list[dict[str, Any]]:
    return [progress.row() for progress in iter_train(tiny_preset(steps=12, log_every=3), device="cpu")]


def drawn(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that the browser gets."""
    return [row for data in spec["datasets"].values() for row in data]


def test_the_frame_holds_what_was_reported() -> None:
    rows = reported()
    frame = metrics_frame(rows)
    assert list(frame.columns) == list(COLUMNS)
    for row, shown in zip(rows, frame.to_dict("records"), strict=True):
        for name in COLUMNS:
            assert shown[name] == pytest.approx(row[name])


def test_a_row_that_was_garbled_is_no_number() -> None:
    frame = metrics_frame([{"step": 3, "loss": "much"}, {"step": 5, "loss": 0.25, "learning_rate": None}])
    assert frame["step"].tolist() == [3, 5]
    assert pd.isna(frame["loss"][0])
    assert frame["loss"][1] == 0.25
    assert len(metrics_frame([])) == 0


@DARK
@pytest.mark.parametrize("curves", [LOSS, ACCURACY, GRADIENT, RATE], ids=lambda curves: curves.title)
def test_a_chart_has_its_numbers_its_axes_and_its_hues(curves: Curves, dark: bool) -> None:
    frame = metrics_frame(reported())
    spec = curve_chart(frame, curves, steps=12, dark=dark).to_dict()
    lines = spec["layer"][0]["encoding"]
    for name in curves.names:
        assert [row[name] for row in drawn(spec)] == pytest.approx(frame[name].tolist())
    assert lines["x"]["title"] == "step"
    assert lines["x"]["scale"]["domain"] == [0, 12]
    assert lines["y"]["title"] == curves.axis
    assert lines["color"]["scale"]["range"] == [theme.pick(hue, dark) for hue in curves.hues]
    assert lines["color"]["scale"]["domain"] == list(curves.names.values())
    if curves.share:
        assert lines["y"]["scale"]["domain"] == [0, 1]


def test_only_positive_values_are_drawn_on_a_logarithmic_axis() -> None:
    frame = metrics_frame([{"step": 1, "loss": 0.0}, {"step": 2, "loss": 0.5}])
    lines = curve_chart(frame, LOSS, steps=2, dark=False, log=True).to_dict()["layer"][0]
    assert lines["encoding"]["y"]["scale"]["type"] == "log"
    assert any("datum.value > 0" in str(step.get("filter")) for step in lines["transform"])
    plain = curve_chart(frame, ACCURACY, steps=2, dark=False, log=True).to_dict()["layer"][0]
    assert plain["encoding"]["y"]["scale"].get("type") != "log"


def test_marks_and_the_shown_step_are_rules_and_no_points_of_a_curve() -> None:
    frame = metrics_frame(reported())
    spec = curve_chart(with_marks(frame, 6, [(9, "here")]), LOSS, steps=12, dark=False).to_dict()
    rows = {row["mark"]: row for row in drawn(spec)}
    assert (rows["shown"]["step"], rows["marked"]["step"], rows["marked"]["note"]) == (6, 9, "here")
    assert spec["layer"][0]["transform"][0]["filter"] == "datum.mark == ''"
    rules = [layer for layer in spec["layer"] if layer["mark"]["type"] == "rule"]
    assert {str(layer["transform"][0]["filter"]) for layer in rules} == {
        "datum.mark == ''", "datum.mark == 'marked'", "datum.mark == 'shown'",
    }  # fmt: skip


def test_what_a_chart_looks_like_does_not_depend_on_how_far_the_run_is() -> None:
    """But for the end of its axis, a round number that a curve which falls never moves."""
    frame = metrics_frame(reported())
    specs = []
    for n in (1, len(frame)):
        spec = curve_chart(with_marks(frame.head(n), None), LOSS, steps=12, dark=False).to_dict()
        specs.append(json.dumps({name: value for name, value in spec.items() if name not in ("data", "datasets")}))
    assert specs[0] == specs[1]


@pytest.mark.parametrize("log", [False, True])
def test_no_axis_waits_for_its_data(log: bool) -> None:
    """Vega looks for the extent of a field before the data are there, and complains in the console that it is infinite."""
    for n in (0, 3):
        spec = curve_chart(metrics_frame(reported()).head(n), LOSS, steps=12, dark=False, log=log).to_dict()
        scales = [layer["encoding"]["y"]["scale"] for layer in spec["layer"] if "y" in layer["encoding"]]
        assert scales
        assert all(len(scale["domain"]) == 2 for scale in scales)


def test_an_axis_ends_at_round_numbers_around_its_values() -> None:
    frame = pd.DataFrame({"a": [0.0, 0.02, None], "b": [2.9, None, 0.5]})
    assert domain_of(frame, ["a", "b"]) == (0.0, 3.0)
    assert domain_of(frame, ["a", "b"], log=True) == (0.01, 10.0)
    assert domain_of(frame.head(0), ["a"]) == (0.0, 1.0)
    assert domain_of(frame.head(0), ["a"], log=True) == (0.1, 1.0)
    assert domain_of(-frame, ["b"]) == (-3.0, 0.0)
    assert domain_of(frame * 0, ["a"]) == (0.0, 1.0)


def test_a_long_run_is_thinned_and_keeps_its_last_point() -> None:
    frame = metrics_frame([{"step": step} for step in range(5003)])
    thin = every_nth(frame, 400)
    assert len(thin) <= 402
    assert thin["step"].iloc[-1] == 5002
    assert len(every_nth(frame.head(7), 400)) == 7


def test_the_heads_have_a_column_each_and_the_best_of_them() -> None:
    table = head_table({10: {"a": [0.1, 0.4], "b": [0.2]}, 20: {"a": [0.3, 0.2], "b": [0.9]}})
    wide, columns = head_frame(table)
    assert wide["step"].tolist() == [10, 20]
    assert wide[columns["a", 1]].tolist() == [0.4, 0.2]
    assert wide[columns["b", 0]].tolist() == [0.2, 0.9]
    assert wide[BEST].tolist() == [0.4, 0.9]
    curves = head_curves("anti-diagonal", {column: str(pair) for pair, column in columns.items()}, [0, 1, 0])
    assert curves.hues == (theme.HEAD_HUES[0], theme.HEAD_HUES[1], theme.HEAD_HUES[0])
    curve_chart(wide, curves, steps=20, dark=False).to_dict()
