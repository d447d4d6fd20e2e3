"""“Why here?” on the Attention screen: the sentence, the way back, the check, and what is said where nothing explains it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pytest
from streamlit.testing.v1 import AppTest

import xformer
from pages.attention.explained import sentence
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open
from xformer import viz
from xformer.analysis.score_parts import score_parts
from xformer.analysis.score_summary import carriers, check, explains, without_source

PAGE = "pages/attention/page.py"
LINK = {"model": "induction", "input": "3 7 12 5 3 7 12", "head": "2.1.4-1", "panel": "why here?"}


def said(app: AppTest) -> str:
    return " ".join(element.value for element in app.markdown)


def test_an_induction_head_is_explained_by_the_head_before_it(open_page: Open) -> None:
    app = open_page(PAGE, **LINK)
    assert not app.exception
    assert "comes through **layer 1 · head 1** at the key" in said(app)
    assert "**And does it matter?**" in said(app)
    table = app.dataframe[-1].value
    weight = table[table["what"] == "weight on this key"].iloc[0]
    assert weight["after"] < weight["before"] / 2


def test_one_walks_back_to_the_head_that_wrote_it_and_returns(open_page: Open) -> None:
    app = open_page(PAGE, **LINK)
    app.button(key="why_back_key_0_0").click().run()
    assert "Layer 1 · head 1 at **1 “7”**" in said(app)
    assert "2.1.4-1" in app.query_params["trail"]
    app.button(key="why_step_0").click().run()
    assert "Layer 2 · head 1 at **4 “3”**" in said(app)
    assert "trail" not in app.query_params


def test_a_link_restores_the_way_and_what_a_key_is_compared_with(open_page: Open) -> None:
    app = open_page(PAGE, **{**LINK, "head": "1.1.1-0", "trail": "2.1.4-1", "against": "1"})
    assert app.selectbox(key="why_against").value == 1
    assert any(button.key == "why_step_0" for button in app.button)
    wrong = open_page(PAGE, **{**LINK, "trail": "9.9.99-99"})
    assert not wrong.exception


def test_the_code_draws_what_is_shown(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, LINK)


def test_where_no_source_carries_half_the_sentence_says_so() -> None:
    reading = xformer.read("checkpoints/characters", "The list of")
    parts = score_parts(reading, layer=2, head=1, query=6, key=3)
    found = explains(parts)
    said_of_it = sentence(parts.total_advantage, found, carriers(parts))
    best = max(carriers(parts), key=lambda one: one.advantage)
    assert ("No single source explains it" in said_of_it) == (best.share < 0.5)
    assert sentence(-1.0, None, carriers(parts)) == "It does not prefer this key to what it is compared with."
    assert "No single source explains it" in sentence(1.0, None, carriers(parts))


def test_taking_a_source_out_is_the_same_edit_made_by_hand() -> None:
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 5")
    without = without_source(reading, layer=0, head=0, side="key", source="position")
    model = xformer.load("checkpoints/reverse-small").model
    attention = model.encoder.blocks[0].attn
    keys = reading["encoder.0.attn.k"].clone()
    keys[0, 0] -= (reading["pos_embed"] @ attention.W_K[0]).detach()
    edit = xformer.edits.replace("encoder.0.attn.k", keys, heads=[0])
    by_hand = xformer.read("checkpoints/reverse-small", "3 7 12 5", edits=[edit])
    assert without.logits.sub(by_hand.logits).abs().max().item() < 1e-4
    table = check(reading, without, layer=0, head=0, query=0, key=3)
    assert table["what"].tolist() == ["weight on this key", "score of this key", "loss"]


def test_the_matrix_opens_a_layer_to_its_heads_and_sums_to_the_same(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 9")
    cell = {"layer": 3, "head": 1, "query": 0, "key": 2}
    closed, opened, whole = (viz.why(reading, **cell, opened=layers) for layers in ([], ["layer 2"], None))
    names = [{row["key_source"] for row in _cells(chart)} for chart in (closed, opened, whole)]
    assert "layer 2 · all heads" in names[0]
    assert "layer 2 · all heads" not in names[1]
    assert any(name.startswith("layer 2 · head") for name in names[1])
    sums = [sum(row["advantage"] for row in _cells(chart)) for chart in (closed, opened, whole)]
    assert sums[0] == pytest.approx(sums[2], abs=1e-5)
    assert sums[1] == pytest.approx(sums[2], abs=1e-5)
    monkeypatch.setattr("pages.attention.why.FEW", 1)
    link = {"model": "reverse", "input": "3 7 12 9", "head": "4.2.0-2", "panel": "why here?"}
    app = open_page(PAGE, **link)
    assert len(app.button_group(key="why_opened_4.2.0-2").value) == 1
    assert open_page(PAGE, **link, opened="layer 2_layer 3").query_params["opened"] == "layer 2_layer 3"


def _cells(chart: alt.HConcatChart) -> list[dict[str, Any]]:
    """The rows of the matrix."""
    spec = chart.to_dict()
    return spec["datasets"][spec["hconcat"][1]["data"]["name"]]
