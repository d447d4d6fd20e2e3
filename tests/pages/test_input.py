"""What the sidebar does with the input of every kind of task: without a trained model, on ones made for the purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xformer
from pages.components.controls import edit_sent
from pages.shared import models
from pages.shared.inputs import edited, kind_of
from tests.pages.conftest import Open, plain
from xformer import Checkpoint, Transformer, save
from xformer.presets import preset
from xformer.tasks import Task

ATTENTION = "pages/attention/page.py"
NAMES = ("induction", "addition", "parity", "brackets", "modular")


@pytest.fixture
def untrained(tmp_path: Path, ship: Callable[[Path], None]) -> None:
    """One model of each kind of task in place of the shipped ones, with fresh weights."""
    for name in (*NAMES, "reverse"):
        chosen = preset(name)
        save(Checkpoint(Transformer(chosen.model), Task(chosen.task)), tmp_path / name)
    ship(tmp_path)


def text(app: Any) -> str:
    return " ".join(element.value for kind in ("caption", "markdown") for element in getattr(app, kind))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("untrained")
def test_default_random_and_an_example_can_be_read(open_page: Open, name: str) -> None:
    rule = Task(preset(name).task).rule
    app = open_page(ATTENTION, model=name)
    assert app.sidebar.text_input(key="input").value == rule.default
    assert rule.look_for in text(app)
    app.sidebar.button(key="random_input").click().run()
    assert not app.exception
    assert not app.error
    purpose, typed = list(rule.examples().items())[-1]
    next(button for button in app.sidebar.button if button.label == purpose).click().run()
    assert app.sidebar.text_input(key="input").value == typed
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize(
    ("name", "typed"), [("addition", "347+586"), ("parity", "1101"), ("brackets", "(())"), ("modular", "3 44")]
)
@pytest.mark.usefixtures("untrained")
def test_the_link_says_what_was_typed(open_page: Open, name: str, typed: str) -> None:
    app = open_page(None, model=name, input=typed)
    assert not app.error
    assert app.query_params["input"] == typed


@pytest.mark.usefixtures("untrained")
def test_a_model_of_another_task_brings_its_own_input_where_it_cannot_read_what_is_there(open_page: Open) -> None:
    app = open_page(None, model="reverse", input="3 7 12")
    for name, value in (
        ("induction", "3 7 12"),
        ("brackets", "(()())())("),
        ("parity", "10110100"),
        ("reverse", "3 7 12 9 4 11"),
    ):
        app.sidebar.selectbox(key="model").set_value(name).run()
        assert app.sidebar.text_input(key="input").value == value
        assert not app.exception
        assert not app.error


@pytest.mark.usefixtures("untrained")
def test_what_cannot_be_read_is_said_and_something_that_can_is_shown(open_page: Open) -> None:
    app = open_page(None, model="modular", input="3 4 5")
    assert ["adds two numbers, got 3" in plain(element.value) for element in app.error] == [True]
    assert not app.exception
    assert app.query_params["input"] == Task(preset("modular").task).rule.default


EDITS = [
    ("reverse", "3 7 12", 1, "5", "3 5 12"),
    ("reverse", "3 7 12", 0, "", "7 12"),
    ("reverse", "3", 1, "8", "3 8"),
    ("addition", "34+56", 1, "9", "39+56"),
    ("brackets", "(()", 3, ")", "(())"),
    ("modular", "29 39", 1, "7", "29 7"),
]


@pytest.mark.parametrize(("name", "typed", "at", "text", "then"), EDITS)
@pytest.mark.usefixtures("untrained")
def test_a_token_edited_in_its_place_changes_the_typed_text(
    open_page: Open, name: str, typed: str, at: int, text: str, then: str
) -> None:
    app = open_page(ATTENTION, model=name, input=typed)
    [strip] = [one.proto for one in app.get("bidi_component") if one.proto.component_name == "xformer_prediction_strip"]
    sent = json.loads(strip.json)
    edit, tokens = sent["edit"], sent["lanes"][0]["tokens"]
    assert edit["texts"] == [*tokens[edit["first"] :][: len(edit["texts"]) - 1], ""]
    subject = models.subject(name)
    pieces = kind_of(subject).pieces(xformer.read(subject, typed))
    assert edited(pieces.texts, at, text) == then


def test_a_text_keeps_its_spaces_where_a_token_is_edited() -> None:
    pieces = ("The", " cat", " sat", ".", " .")
    assert edited(pieces, 1, "dog") == "The dog sat."
    assert edited(pieces, 4, "On") == "The cat sat. On"
    assert edited(pieces, 4, "!") == "The cat sat.!"
    assert edited(pieces, 0, "") == "cat sat."


@pytest.mark.parametrize("sent", [None, "3", {"at": 3, "text": "5"}, {"at": 0, "text": 5}, {"at": "0", "text": "5"}])
def test_an_edit_that_no_strip_sends_is_ignored(sent: object) -> None:
    assert edit_sent(sent, 3) is None
    assert edit_sent({"at": 2, "text": "5"}, 3) == (2, "5")


def test_an_image_is_not_edited_token_by_token(open_page: Open) -> None:
    app = open_page(ATTENTION, model="digits")
    [strip] = [one.proto for one in app.get("bidi_component") if one.proto.component_name == "xformer_prediction_strip"]
    assert json.loads(strip.json)["edit"] is None


def test_a_run_that_would_take_all_memory_is_refused_with_a_sentence(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "1")  # MB
    long = " ".join(["7"] * 60)
    app = open_page("pages/attention/page.py", model="reverse", input=long)
    assert not app.exception
    assert any(
        "of memory" in plain(error.value) and "type a shorter input" in plain(error.value) for error in app.error
    )
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "0")
    nothing_fits = open_page("pages/attention/page.py", model="reverse")
    assert not nothing_fits.exception
    assert any("of memory" in plain(error.value) for error in nothing_fits.error)
