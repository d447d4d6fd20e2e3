"""The Residual screen on several models: its pictures, notes and link, and its numbers against the library."""

from __future__ import annotations

import json
import re

import pytest

import xformer
from tests.pages.conftest import ROOT, Open, complaints, text

PAGE = "pages/residual/page.py"


def specs(app: object) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]  # pyright: ignore


@pytest.mark.parametrize("model", ["characters", "digits"])
def test_the_lens_and_the_norms_open_on_models_with_and_without_right_answers(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert complaints(app) == []
    assert len(specs(app)) == 2  # the lens, and the path of one answer
    words = {"digits": "The output stays correct", "characters": "these no longer change"}
    assert words[model] in text(app)
    assert ("✓" in text(app)) == (model != "characters")
    assert ("actual next token" in text(app)) == (model == "characters")
    app.segmented_control(key="residual_picture").set_value("norms").run()
    assert complaints(app) == []
    assert len(specs(app)) == 1
    assert "‖x‖, the norm of" in text(app)


def test_a_drawing_has_no_right_answer(open_page: Open) -> None:
    app = open_page(PAGE, model="digits", input="drawn")
    assert "✓" not in text(app)
    assert "no right answer is known here" in text(app)
    assert "stays correct" not in text(app)
    app.segmented_control(key="residual_picture").set_value("parts").run()
    assert not app.exception
    assert "right" not in app.segmented_control(key="residual_goal").label


def test_at_the_last_position_the_top_prediction_is_explained(open_page: Open) -> None:
    app = open_page(PAGE, model="characters", input="the list", picture="parts", pos="7")
    assert complaints(app) == []
    assert "should predict" not in str(app.selectbox(key="residual_pos").options)
    best = xformer.read(ROOT / "checkpoints/characters", "the list").logits[0, -1].max().item()
    assert f"= {best:.4f} in the model" in text(app)


def test_many_positions_are_shown_in_a_window_kept_in_the_link(open_page: Open) -> None:
    numbers = " ".join(str(1 + index % 19) for index in range(60))
    app = open_page(PAGE, model="reverse", input=numbers, picture="norms", **{"from": "24"})
    assert "24 of 60 positions are shown, 24 to 47" in text(app)
    app.select_slider(key="residual_from").set_value(48).run()
    assert not app.exception
    assert "12 of 60 positions are shown, 48 to 59" in text(app)
    assert app.query_params["from"] in ("48", ["48"])


def test_the_parts_on_screen_sum_to_the_models_logit(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 11 5", pos="3", picture="parts")
    logit = xformer.read(ROOT / "checkpoints/reverse", "4 9 2 11 5").logits[0, 3, 9].item()
    found = re.search(r"logit of 9 = ([\d.]+) in the model; the parts sum to ([\d.]+)", text(app))
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx([logit, logit], abs=1e-3)


def test_a_changed_run_is_drawn_next_to_the_original(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", edits="token:0.5")
    assert len(specs(app)) == 2
    app.segmented_control(key="residual_picture").set_value("norms").run()
    assert len(specs(app)) == 2
    app.segmented_control(key="residual_picture").set_value("parts").run()
    assert complaints(app) == []
    assert len(specs(app)) == 1
    assert "Outlined, the original: " in text(app)
