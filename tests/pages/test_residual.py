"""The residual screen for every model, with links good and bad; its code runs and its numbers are the library's."""

from __future__ import annotations

import json
import re

import pytest
import torch

import xformer
from tests.pages.conftest import ROOT, Open
from tests.pages.test_explore import MODELS, messages, text

PAGE = "pages/explore/residual.py"


def specs(app: object) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]  # pyright: ignore


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_read_layer_by_layer(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert not app.exception
    assert messages(app) == []
    assert len(specs(app)) == 4
    assert ("The output becomes right for good" if model == "digits" else "these become right for good") in text(app)


def test_the_sum_on_the_screen_is_the_models_logit(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 11 5", pos="3")
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    logit = xformer.record(checkpoint.model, torch.tensor([[4, 9, 2, 11, 5]])).logits[0, 3, 9].item()
    found = re.search(r"logit of 9 = ([\d.]+) in the model; the parts sum to ([\d.]+)", text(app))
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx([logit, logit], abs=1e-3)


@pytest.mark.parametrize(
    ("model", "edits"),
    [
        ("reverse", "mute:encoder.2.ffn"),
        ("reverse-decoder", "silence:decoder.1.attn.0"),
        ("reverse-seq2seq", "token:0.5"),
        ("reverse-mirror", "positions:off"),
    ],
)
def test_a_change_stands_beside_the_original(open_page: Open, model: str, edits: str) -> None:
    app = open_page(PAGE, model=model, edits=edits, goal="lead")
    assert not app.exception
    assert messages(app) == []
    assert len(specs(app)) == 7
    assert "Outlined, the original: " in text(app)
    assert app.segmented_control(key="residual_goal").value == "lead"


@pytest.mark.parametrize(("link", "n"), [({"pos": "99"}, 1), ({"pos": "x", "goal": "y"}, 2), ({"pos": "0"}, 0)])
def test_a_link_to_what_is_not_here_says_so(open_page: Open, link: dict[str, str], n: int) -> None:
    app = open_page(PAGE, model="reverse", **link)
    assert not app.exception
    assert len(app.warning) == n


def test_the_choice_survives_a_model_that_does_not_have_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-decoder", pos="13")
    app.sidebar.selectbox(key="model").set_value("reverse").run()
    assert not app.exception
    assert app.select_slider(key="residual_pos").value == 0


@pytest.mark.parametrize("model", ["reverse", "reverse-seq2seq", "reverse-decoder"])
def test_the_code_runs(open_page: Open, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = {"reverse": "encoder.0.ffn", "reverse-seq2seq": "decoder.0.ffn", "reverse-decoder": "decoder.1.ffn"}[model]
    app = open_page(PAGE, model=model, edits=f"mute:{path}", goal="lead")
    monkeypatch.chdir(ROOT)
    assert len(app.code) == 3
    for block in app.code:
        exec(block.value, {})
