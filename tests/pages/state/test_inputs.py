"""The input field of the sidebar for every kind of task, tested with untrained models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import xformer
from pages.components.elements import edit_sent
from pages.compute import models
from pages.state.inputs import edited, kind_of
from tests.pages.conftest import Open, complaints, everything, plain
from xformer import Checkpoint, Transformer, save
from xformer.presets import preset
from xformer.tasks import Task

ATTENTION = "pages/attention/page.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One untrained model of each kind of task."""
    folder = tmp_path_factory.mktemp("untrained")
    for name in ("induction", "addition", "brackets", "reverse"):
        chosen = preset(name)
        save(Checkpoint(Transformer(chosen.model), Task(chosen.task)), folder / name)
    return folder


@pytest.fixture
def untrained(saved: Path, ship: Callable[[Path], None]) -> None:
    """Replace the shipped models with the untrained ones."""
    ship(saved)


@pytest.mark.usefixtures("untrained")
def test_default_random_and_example_inputs_can_be_read(open_page: Open) -> None:
    rule = Task(preset("addition").task).rule
    app = open_page(ATTENTION, model="addition")
    assert app.sidebar.text_input(key="input").value == rule.default
    assert plain(rule.attention_hint) in everything(app)
    app.sidebar.button(key="random_input").click().run()
    assert complaints(app) == []
    purpose, typed = list(rule.examples().items())[-1]
    next(button for button in app.sidebar.button if button.label == purpose).click().run()
    assert app.sidebar.text_input(key="input").value == app.query_params["input"] == typed
    assert complaints(app) == []


@pytest.mark.usefixtures("untrained")
def test_switching_to_a_model_that_cannot_read_the_input_resets_it(open_page: Open) -> None:
    app = open_page("pages/embeddings/page.py", model="reverse", input="3 7 12")
    for name, value in (("induction", "3 7 12"), ("brackets", "(()())())("), ("reverse", "3 7 12 9 4 11")):
        app.sidebar.selectbox(key="model").set_value(name).run()
        assert app.sidebar.text_input(key="input").value == value
        assert complaints(app) == []
    app.sidebar.text_input(key="input").set_value("3 99").run()
    assert [line.startswith("This model") for line in complaints(app)] == [True]
    assert app.query_params["input"] == "3 7 12 9 4 11"


EDITS = [("reverse", "3 7 12", 0, "", "7 12"), ("reverse", "3", 1, "8", "3 8"), ("addition", "34+56", 1, "9", "39+56")]


@pytest.mark.usefixtures("untrained")
def test_editing_a_token_in_place_changes_the_typed_text() -> None:
    for name, typed, at, text, then in EDITS:
        adapter = models.adapter(name)
        pieces = kind_of(adapter).pieces(xformer.read(adapter, typed))
        assert edited(pieces.texts, at, text) == then


def test_editing_a_token_keeps_the_spaces_of_a_text() -> None:
    pieces = ("The", " cat", " sat", ".", " .")
    assert edited(pieces, 1, "dog") == "The dog sat."
    assert edited(pieces, 4, "On") == "The cat sat. On"
    assert edited(pieces, 4, "!") == "The cat sat.!"
    assert edited(pieces, 0, "") == "cat sat."
    texts = ("3", "7", "")
    for sent in (
        None,
        "3",
        {"at": 3, "was": "7", "text": "5"},
        {"at": 0, "was": "3", "text": 5},
        {"at": "0", "text": "5"},
    ):
        assert edit_sent(sent, texts) is None  # malformed
    assert edit_sent({"at": 1, "was": "7", "text": "5"}, texts) == (1, "5")
    assert edit_sent({"at": 4, "was": "", "text": "5"}, texts) == (2, "5")  # a new token, after another was removed
    assert edit_sent({"at": 0, "was": "7", "text": "5"}, texts) is None  # another token stands there now


def test_an_input_that_exceeds_the_memory_budget_is_refused(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "1")  # MB
    app = open_page(ATTENTION, model="reverse", input=" ".join(["7"] * 60))
    assert ["use a shorter input" in line for line in complaints(app)] == [True]
    monkeypatch.setenv("XFORMER_MAX_MEMORY", "0")
    assert any("of memory" in line for line in complaints(open_page(ATTENTION, model="reverse")))
