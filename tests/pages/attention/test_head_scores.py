"""The effect of ablating each head on the Attention screen: one click ranks all heads, next to their scores."""

from __future__ import annotations

import pandas as pd
import pytest

from pages.attention.head_scores import _ranked
from tests.pages.code_and_picture import assert_code_draws, charts_shown
from tests.pages.conftest import Open, complaints, text

PAGE = "pages/attention/page.py"
LINK = {"model": "reverse", "input": "3 7 12 9", "panel": "scores of all heads"}


def test_one_click_ranks_all_heads_by_the_effect_of_ablation(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(PAGE, **LINK)
    assert "measured" not in app.dataframe[0].value
    shown = charts_shown(monkeypatch)
    app.segmented_control(key="without").set_value("loss").run()
    table = app.dataframe[0].value
    assert table["measured"].abs().is_monotonic_decreasing
    assert "the loss goes from" in text(app)
    assert "All 16 heads are measured." in text(app)
    assert app.query_params["without"] == "loss"
    assert_code_draws(app, shown)


def test_a_link_restores_the_measure(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, without="lead", at="1")
    assert complaints(app) == []
    assert app.selectbox(key="effects_at").value == 1
    app = open_page(PAGE, **LINK, without="lead", at="99")
    assert app.selectbox(key="effects_at").value == 3
    assert ["asks for a position" in line for line in complaints(app)] == [True]


def test_a_long_measurement_stops_early_and_can_be_resumed(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.compute.background_job.AT_ONCE", 0.0)
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 12)
    monkeypatch.setattr("pages.compute.background_job.LONG", 0.0)
    app = open_page(PAGE, **LINK, without="loss")
    assert "heads measured. The other " in text(app)
    table = app.dataframe[0].value
    assert table["measured"].isna().any()
    layer, head = (int(number) for number in app.query_params["head"].split("."))
    row = table[(table["where"] == f"layer {layer}") & (table["head"] == head)]
    assert row["measured"].notna().all()  # the enlarged head is measured
    app.button(key="head_effects_bar_on").click().run()
    for _ in range(20):
        if not app.dataframe[0].value["measured"].isna().any():
            break
        app.run()
    assert app.dataframe[0].value["measured"].notna().all()


def test_the_measured_heads_come_first_and_no_estimate_among_them() -> None:
    scores = pd.DataFrame({"layer": ["a"] * 4, "head": range(4), "previous": 0.0})
    effects = {"layer": "a", "head": range(4), "estimated": [9.0, 0.1, -5.0, 0.0], "measured": [None, 0.2, None, -0.3]}
    assert _ranked(scores, pd.DataFrame(effects))["head"].tolist() == [3, 1, 0, 2]


def test_scores_stay_where_effects_cannot_be_measured(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.analysis.ablation.free_bytes", lambda: 1000)
    app = open_page(PAGE, **LINK, without="loss")
    assert "type a shorter input" in text(app)
    assert "diagonal" in app.dataframe[0].value
