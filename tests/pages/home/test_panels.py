"""Home: accuracy by input length, the answer strip, and the sentence on generalisation."""

from __future__ import annotations

from functools import partial

import pytest

from pages.compute.background_job import follow
from pages.home.panels import _sentence
from tests.analysis.test_scoring import rows
from tests.pages.conftest import ROOT, Open, complaints, components, strip_lanes, text
from xformer import load, read
from xformer.edits import set_causal

PAGE = ROOT / "pages/home/page.py"


def test_accuracy_by_input_length_is_measured(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pages.home.panels.follow", partial(follow, budget=60.0)
    )  # everything in one rerun of the screen
    app = open_page(PAGE, model="reverse-mirror", input="3 7 12 9", more="length").run()
    assert complaints(app) == []
    assert any("Trained on 3 to 15 numbers, it already fails at 16" in heading.value for heading in app.subheader)
    assert "200 new inputs of each length" in text(app)


def test_answer_strip_is_drawn_only_if_the_scene_does_not_show_the_answer(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9")
    assert not components(app, "prediction_strip")
    assert "All tokens right, predicted all at once. Click a token" in text(app)
    changed = strip_lanes(open_page(PAGE, model="reverse", input="3 7 12 9", mask="causal"))
    assert [lane["name"] for lane in changed][:2] == ["you type", "model"]
    assert changed[0]["tokens"] == ["3", "7", "12", "9"]
    masked = read(ROOT / "checkpoints/reverse", "3 7 12 9", edits=[set_causal(True)])
    assert changed[1]["tokens"] == ["9", "12", "7", "3"] != changed[2]["tokens"]
    assert changed[2]["tokens"] == [masked.adapter.token_labels[token] for token in masked.predicted]


def test_predictions_for_a_changed_input_are_compared_with_its_own_answer(open_page: Open) -> None:
    lanes = strip_lanes(open_page(PAGE, model="reverse", input="3 7 12 9", edits="token:0.5"))
    assert [lane["tokens"] for lane in lanes[1:]] == [["9", "12", "7", "3"], ["9", "12", "7", "5"]]
    assert all(all(lane["right"]) for lane in lanes[1:])


def test_a_task_with_a_single_length_has_no_length_panel(open_page: Open) -> None:
    app = open_page(PAGE, model="modular", more="length")
    assert not app.exception
    assert "new inputs of each length" not in text(app)


def test_sentence_on_generalisation_follows_the_accuracies() -> None:
    task = load(ROOT / "checkpoints/reverse").task
    assert task is not None
    assert "not get 99% right" in _sentence(task, rows([1.0, 0.5], [1.0]))
    assert "fails at 16" in _sentence(task, rows([1.0, 1.0], [0.9]))
    assert "every length up to 5" in _sentence(task, rows([1.0, 1.0], [1.0, 0.2]))
