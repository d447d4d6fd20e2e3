"""Home: how long an input a model can read correctly, counted in the background."""

from __future__ import annotations

from functools import partial

import pytest

from pages.home.more import _sentence
from pages.shared.background_job import follow
from tests.analysis.test_scoring import rows
from tests.pages.conftest import ROOT, Open, complaints, strip_lanes, text
from xformer import load, read
from xformer.edits import set_causal

PAGE = ROOT / "pages/home/page.py"


def test_how_long_it_can_go_is_counted(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.home.more.follow", partial(follow, budget=60.0))  # all of it in one run of the screen
    app = open_page(PAGE, model="reverse-mirror", input="3 7 12 9", more="length").run()
    assert complaints(app) == []
    assert any("Trained on 3 to 15 numbers, it already fails at 16" in one.value for one in app.subheader)
    assert "200 fresh inputs of each length" in text(app)


def test_an_answer_that_the_scene_shows_is_not_drawn_again_until_two_runs_are_compared(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9")
    assert "xformer_prediction_strip" not in [one.proto.component_name for one in app.get("bidi_component")]  # type: ignore[attr-defined]
    assert "Every token is right, predicted all at once. Click a token" in text(app)
    changed = strip_lanes(open_page(PAGE, model="reverse", input="3 7 12 9", mask="causal"))
    assert [lane["name"] for lane in changed][:2] == ["you type", "model"]
    assert changed[0]["tokens"] == ["3", "7", "12", "9"]
    masked = read(ROOT / "checkpoints/reverse", "3 7 12 9", edits=[set_causal(True)])
    assert changed[1]["tokens"] == ["9", "12", "7", "3"] != changed[2]["tokens"]
    assert changed[2]["tokens"] == [masked.subject.labels[token] for token in masked.predicted]


def test_a_changed_input_is_judged_by_its_own_answer(open_page: Open) -> None:
    lanes = strip_lanes(open_page(PAGE, model="reverse", input="3 7 12 9", edits="token:0.5"))
    assert [lane["tokens"] for lane in lanes[1:]] == [["9", "12", "7", "3"], ["9", "12", "7", "5"]]
    assert all(all(lane["right"]) for lane in lanes[1:])


def test_a_task_of_one_length_does_not_offer_it(open_page: Open) -> None:
    app = open_page(PAGE, model="modular", more="length")
    assert not app.exception
    assert "fresh inputs of each length" not in text(app)


def test_what_is_said_follows_from_the_figures() -> None:
    task = load(ROOT / "checkpoints/reverse").task
    assert task is not None
    assert "not get 99% right" in _sentence(task, rows([1.0, 0.5], [1.0]))
    assert "fails at 16" in _sentence(task, rows([1.0, 1.0], [0.9]))
    assert "every length up to 5" in _sentence(task, rows([1.0, 1.0], [1.0, 0.2]))
