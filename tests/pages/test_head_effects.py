"""“What silencing each head does” on the Attention screen: one press ranks all heads, beside what they look like."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from pages.attention.head_scores import _ranked
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open

PAGE = "pages/attention/page.py"
LINK = {"model": "reverse", "input": "3 7 12 9", "panel": "scores of all heads"}


def test_one_press_ranks_all_heads_by_what_silencing_them_does(open_page: Open) -> None:
    app = open_page(PAGE, **LINK)
    assert "measured" not in app.dataframe[0].value
    app.segmented_control(key="without").set_value("loss").run()
    assert not app.exception
    table = app.dataframe[0].value
    assert table["measured"].abs().is_monotonic_decreasing
    assert list(table.columns)[:4] == ["where", "head", "measured", "estimated"]
    assert any("the loss goes from" in element.value for element in app.markdown)
    assert app.query_params["without"] == "loss"


def test_a_link_restores_what_it_is_judged_by(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, without="lead", at="1", score="previous")
    assert not app.exception
    assert app.selectbox(key="effects_at").value == 1
    assert any("the lead of" in element.value for element in app.markdown)
    gone = open_page(PAGE, **LINK, without="lead", at="99")
    assert any("asks for a position" in warning.value for warning in gone.warning)


def test_what_takes_long_stops_after_a_moment_and_goes_on_when_asked(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pages.attention.head_scores.AT_ONCE", 0.0)
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 12)
    monkeypatch.setattr("pages.shared.background_job.LONG", 0.0)
    app = open_page(PAGE, **LINK, without="loss")
    assert any("heads measured. The other " in element.value for element in app.markdown)
    assert any("heads are not measured**; for them there is only an estimate" in one.value for one in app.markdown)
    table = app.dataframe[0].value
    assert table["measured"].isna().any()
    enlarged = app.query_params["head"]
    layer, head = (int(number) for number in enlarged.split("."))
    row = table[(table["where"] == f"layer {layer}") & (table["head"] == head)]
    assert row["measured"].notna().all()  # what one looks at is measured
    app.button(key="head_effects_bar_on").click().run()
    for _ in range(20):
        app.run()
    assert app.dataframe[0].value["measured"].notna().all()


def test_what_is_quick_is_measured_without_asking(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.attention.head_scores.AT_ONCE", 0.0)
    monkeypatch.setattr("xformer.analysis.ablation.AT_ONCE", 12)
    app = open_page(PAGE, **LINK, without="loss")
    for _ in range(20):
        app.run()
    assert not app.dataframe[0].value["measured"].isna().tolist().count(True)
    assert any("All 16 heads are measured." in element.value for element in app.markdown)


def test_the_measured_heads_come_first_and_no_estimate_among_them() -> None:
    scores = pd.DataFrame({"layer": ["a"] * 4, "head": range(4), "previous": 0.0})
    effects = pd.DataFrame(
        {"layer": ["a"] * 4, "head": range(4), "estimated": [9.0, 0.1, -5.0, 0.0], "measured": [None, 0.2, None, -0.3]}
    )
    assert _ranked(scores, effects)["head"].tolist() == [3, 1, 0, 2]


def test_the_code_draws_what_is_shown(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, {**LINK, "without": "loss"})


def test_where_it_cannot_be_had_the_scores_stay(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.analysis.ablation.free_bytes", lambda: 1000)
    app = open_page(PAGE, **LINK, without="loss")
    assert any("type a shorter input" in info.value for info in app.info)
    assert "diagonal" in app.dataframe[0].value


@pytest.mark.parametrize(("old", "today"), [("anti-diagonal", "anti_diagonal"), ("the task’s", "task_pattern")])
def test_older_links_name_a_score_in_words(open_page: Open, old: str, today: str) -> None:
    app = open_page(PAGE, **LINK, without="loss", score=old)
    assert not app.warning
    assert app.query_params["score"] == today
    columns = json.loads(app.dataframe[0].proto.columns).values()
    assert {"task", "anti-diagonal"} <= {column.get("label") for column in columns}
