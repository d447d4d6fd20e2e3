"""What the Attention screen says of a head: which one does what the task needs, and silence where none does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pages.conftest import ROOT, Open
from xformer import Checkpoint, Transformer, load, save
from xformer.formatting import percent
from xformer.tasks.images import digit_images
from xformer.tasks.rules import RULES

PAGE = "pages/attention/page.py"
CLEARLY = [
    ("reverse", "3 7 12 9 4 11", "layer 3 · head 2"),
    ("reverse-seq2seq", "3 7 12 9 4 11", "decoder 1 · cross · head 1"),
    ("induction", "3 7 12 9 4 11", "layer 2 · head 1"),
    ("modular", "30 44", "layer 1 · head"),
    ("digits", "test 0", "layer 2 · head"),
]


def notes(app: Any) -> str:
    return " ".join(element.value for element in app.markdown)


@pytest.fixture
def untrained(tmp_path: Path, ship: Callable[[Path], None]) -> None:
    """The shipped models with fresh weights."""
    for name, *_ in (*CLEARLY, ("reverse-small",)):
        checkpoint = load(ROOT / "checkpoints" / name)
        save(
            Checkpoint(Transformer(checkpoint.config, torch.Generator().manual_seed(1)), checkpoint.task),
            tmp_path / name,
        )
    ship(tmp_path)


@pytest.mark.parametrize(("model", "typed", "head"), CLEARLY)
def test_a_trained_model_has_a_head_that_does_it_and_the_table_shows_the_number(
    open_page: Open, model: str, typed: str, head: str
) -> None:
    app = open_page(PAGE, model=model, input=typed)
    found = re.search(r"Here \*\*(.*?)\*\* comes closest: ([\d.]+)% of its attention", notes(app))
    assert found is not None
    assert found[1].startswith(head)
    table = app.dataframe[0].value
    assert percent(float(table["task_pattern"].max()), 0) == f"{found[2]}%"


def test_a_head_that_looks_at_everything_alike_has_the_share_of_patches_with_ink(open_page: Open) -> None:
    """Of the first test image 9 patches of 16 have ink; the class token looks at itself too."""
    pixels = digit_images()[1].pixels[0].view(4, 2, 4, 2)  # [row, y, column, x]
    n_inked = sum(bool(pixels[row, :, column].any()) for row in range(4) for column in range(4))
    assert n_inked == 9
    app = open_page(PAGE, model="digits", input="test 0")
    assert f"looks at everything alike has {percent(n_inked / 17, 0)}" in notes(app)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(("model", "typed"), [(model, typed) for model, typed, _ in CLEARLY])
def test_an_untrained_model_has_none(open_page: Open, model: str, typed: str) -> None:
    app = open_page(PAGE, model=model, input=typed)
    assert not app.exception
    assert "comes closest" not in notes(app)
    assert "no head does that clearly" in notes(app)


def test_under_another_mask_the_notes_are_about_that_run(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9 4 11", mask="causal")
    assert "Set the mask" not in notes(app)
    assert "comes closest" not in notes(app)
    assert "With causal mask no head does that clearly" in notes(app)
    assert "Hatched" in notes(app)
    app.sidebar.segmented_control(key="mask").set_value("as trained").run()
    assert "3 of 6 outputs need a token that comes later" in notes(app)
    assert "Hatched" not in notes(app)


def test_a_silenced_head_does_not_count(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9 4 11", edits="ablate:encoder.2.attn.1")
    assert not app.exception
    assert "layer 3 · head 2** comes closest" not in notes(app)


@pytest.mark.parametrize("model", ["reverse", "sort"])
def test_a_single_token_tells_nothing(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model, input="5")
    assert not app.exception
    assert "comes closest" not in notes(app)
    assert "Set the mask" not in notes(app)


def test_looking_back_evenly_proves_nothing(open_page: Open) -> None:
    app = open_page(PAGE, model="brackets")
    assert "comes closest" not in notes(app)
    assert "does not tell such a head from any other" in notes(app)


@pytest.mark.parametrize("rule", RULES.values())
def test_what_to_look_for_says_nothing_about_the_model_that_is_there(rule: Any) -> None:
    """It stands on the screen of untrained models too, so it names what to look for, not what is there."""
    assert re.match(r"Look |No picture|Only ", rule.look_for)
    assert not re.search(r"are diffuse|hardly at itself|it looks at|all that a step needs", rule.look_for)


def test_the_headline_says_what_a_clear_head_attends_to_and_is_silent_on_the_others(open_page: Open) -> None:
    words = [one.value for one in open_page(PAGE, model="reverse", input="3 7 12 9 1 15", head="3.1").markdown]
    assert (
        "**layer 3 · head 1** attends to **the mirrored token**: 100% of its attention, 17% if it were even." in words
    )
    words = [one.value for one in open_page(PAGE, model="reverse", input="3 7 12 9 1 15", head="1.1").markdown]
    assert "**layer 1 · head 1** follows no simple pattern on this input." in words
