"""What the sidebar does with the input of every kind of task: without a trained model, on ones made for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
