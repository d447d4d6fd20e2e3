"""“Why here?” on the Attention screen: the sentence, the way back, the measurement, and no claim where no source decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import xformer
from pages.attention.one_cell import Attribution, attribute, sentence
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open, text
from xformer import viz

PAGE = "pages/attention/page.py"
LINK = {"model": "induction", "input": "3 7 12 5 3 7 12", "head": "2.1.4-1", "panel": "why here?"}


def test_an_induction_head_is_explained_by_the_head_before_it(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, LINK)
    two = "The two largest contributions are **layer 1 · head 1** at the key (+2.42) and **token** at the query"
    assert two in text(app)
    assert "**Measured** by removing layer 1 · head 1 from this head’s keys:" in text(app)
    table = app.dataframe[-1].value.set_index("what")
    assert table.index.tolist() == ["weight", "advantage", "score", "loss"]
    assert table.loc["weight", "after"] < table.loc["weight", "before"] / 2
    assert f"Its score is **{table.loc['advantage', 'before']:.2f} nats** above the mean of the others" in text(app)


def test_a_source_leads_back_to_the_head_that_wrote_it_and_back_again(open_page: Open) -> None:
    # a cell that is not there, and one that is no key of this query
    app = open_page(PAGE, **LINK, trail="9.9.99-99", against="5")
    assert app.selectbox(key="why_against").value == -1
    app.button(key="why_back_key_0_0").click().run()
    assert "Layer 1 · head 1 at **1 · 7**" in text(app)
    assert "2.1.4-1" in app.query_params["trail"]
    assert "Measured" not in text(open_page(PAGE, **{**LINK, "head": "2.1.6-0"}))  # less than a uniform share
    there = open_page(PAGE, **{**LINK, "head": "1.1.1-0", "trail": "2.1.4-1", "against": "1"})
    assert there.selectbox(key="why_against").value == 1
    there.button(key="why_step_0").click().run()
    assert "Layer 2 · head 1 at **4 · 3**" in text(there)
    assert "trail" not in there.query_params


WHERE = {"layer": 1, "head": 0, "query": 4, "key": 1, "against": None}


@pytest.fixture(scope="module")
def found() -> Attribution:
    return attribute(xformer.read("checkpoints/induction", "3 7 12 5 3 7 12"), WHERE)


def test_the_sentence_names_deciding_and_opposing_sources(found: Attribution) -> None:
    assert "opposing" not in sentence(found, "the mean of the others")
    assert found.contributions[-1].adds > -0.1
    against = replace(found.contributions[-1], adds=-1.2)
    opposed = sentence(replace(found, opposing=against), "the mean")
    assert f"the largest opposing one is {against.title} (−1.20)" in opposed
    one = sentence(replace(found, deciding=found.deciding[:1]), "the mean")
    assert "The largest contribution is **layer 1 · head 1** at the key (+2.42)." in one


def test_where_no_source_decides_the_sentence_names_none(found: Attribution) -> None:
    changed: dict[str, Any]
    for changed, wanted in (
        ({"deciding": ()}, "No single source decides this; the largest contributions are layer 1 · head 1 at the key"),
        ({"weight": 0.01}, "less than a uniform share of 5 keys"),
        ({"advantage": -0.3}, "not above the mean of the others"),
        ({"advantage": 0.05, "removed": None}, "too little to explain"),
    ):
        explained = sentence(replace(found, **changed), "the mean of the others")
        assert wanted in explained
        assert "**layer" not in explained


def test_the_matrix_opens_a_layer_to_its_heads_and_sums_to_the_same(open_page: Open) -> None:
    reading, names, sums = xformer.read("checkpoints/reverse", "3 7 12 9"), [], []
    for opened in ([], ["layer 2"], None):
        spec = viz.score_attribution(reading, layer=3, head=1, query=0, key=2, opened=opened).to_dict()
        cells = spec["datasets"][spec["hconcat"][1]["data"]["name"]]
        names.append({row["key_source"] for row in cells})
        sums.append(sum(row["advantage"] for row in cells))
    assert ["layer 2 · all heads" in one for one in names] == [True, False, False]
    assert any(name.startswith("layer 2 · head") for name in names[1])
    assert sums[:2] == pytest.approx([sums[2]] * 2, abs=1e-5)
    link = {"model": "reverse", "input": "3 7 12 9", "head": "4.2.0-2", "panel": "why here?"}
    assert open_page(PAGE, **link, opened="layer 2_layer 3").query_params["opened"] == "layer 2_layer 3"
