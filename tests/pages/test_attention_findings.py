"""The Attention screen says which head is worth seeing, and nothing where none is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pages.conftest import ROOT, Open
from xformer import Checkpoint, Transformer, load, save
from xformer.tasks.rules import RULES

PAGE = "pages/attention/page.py"
MODELS = [
    ("reverse", "3 7 12 9 4 11"),
    ("reverse-seq2seq", "3 7 12 9 4 11"),
    ("modular", "30 44"),
    ("digits", "test 0"),
]


def notes(app: Any) -> str:
    return " ".join(element.value for element in app.markdown)


@pytest.fixture
def untrained(tmp_path: Path, ship: Callable[[Path], None]) -> None:
    """The shipped models with fresh weights."""
    for name in (*(name for name, _ in MODELS), "reverse-small"):
        checkpoint = load(ROOT / "checkpoints" / name)
        save(
            Checkpoint(Transformer(checkpoint.config, torch.Generator().manual_seed(1)), checkpoint.task),
            tmp_path / name,
        )
    ship(tmp_path)


@pytest.mark.parametrize(
    ("model", "typed", "finding"),
    [
        ("reverse-small", "3 7 12 9 4 11", "**layer 2 · head 1**: 99.9% of attention is on the mirrored token"),
        (
            "digits",
            "test 0",
            "of attention goes from the class token to patches with ink (even: 53%)",
        ),
        ("characters", "To be, or not", "of attention is on the token before"),
    ],
)
def test_it_opens_on_a_head_with_a_pattern_and_says_what_it_is_for(
    open_page: Open, model: str, typed: str, finding: str
) -> None:
    assert finding in notes(open_page(PAGE, model=model, input=typed))


def test_the_headline_says_what_the_model_loses_without_the_head(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11")
    assert "(even: 14%). Without it, 2 of 7 answers are right." in notes(app)
    app = open_page(PAGE, model="characters", input="To be, or not")  # no answer is right or wrong
    assert re.search(r"Without it, the loss changes by \+\d\.\d\d nats", notes(app))


def test_of_an_ablated_head_the_headline_says_what_changed_after_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11", edits="ablate:encoder.1.attn.0", head="2.1")
    assert "**layer 2 · head 1** is ablated: 5 of 7 predictions differ." in notes(app)


def test_the_headline_is_silent_about_a_head_without_a_pattern(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9 1 15", head="2.1")
    assert "**layer 2 · head 1** follows no simple pattern" in notes(app)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(("model", "typed"), MODELS)
def test_an_untrained_model_has_no_head_with_a_pattern(open_page: Open, model: str, typed: str) -> None:
    app = open_page(PAGE, model=model, input=typed)
    assert not app.exception
    assert "follows no simple pattern" in notes(app)
    assert "of attention" not in notes(app)


def test_the_notes_are_about_the_mask_that_is_on(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9 4 11", mask="causal")
    assert "Set the mask" not in notes(app)
    assert "Hatched" in notes(app)
    app.sidebar.segmented_control(key="mask").set_value("as trained").run()
    assert "3 of 6 outputs need a token that comes later" in notes(app)
    assert "Hatched" not in notes(app)


@pytest.mark.parametrize("model", ["reverse", "sort"])
def test_a_single_token_tells_nothing(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model, input="5")
    assert not app.exception
    assert "Set the mask" not in notes(app)


@pytest.mark.parametrize("rule", RULES.values())
def test_what_to_look_for_does_not_depend_on_the_model(rule: Any) -> None:
    """It stands on the screen of untrained models too, so it names what to look for, not what is there."""
    assert re.match(r"Look |No picture|Only ", rule.look_for)
    assert not re.search(r"are diffuse|hardly at itself|it looks at|all that a step needs", rule.look_for)
