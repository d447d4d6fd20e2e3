"""The Attention screen describes a head only by patterns and effects that were measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pages.attention.heads import focus_words
from tests.pages.conftest import ROOT, Open, text
from xformer import Checkpoint, Transformer, load, save
from xformer.analysis.attention_patterns import Focus
from xformer.formatting import percent

PAGE = "pages/attention/page.py"


@pytest.fixture
def untrained(tmp_path: Path, ship: Callable[[Path], None]) -> None:
    """A shipped model with fresh weights."""
    checkpoint = load(ROOT / "checkpoints/reverse-small")
    model = Transformer(checkpoint.config, torch.Generator().manual_seed(1))
    save(Checkpoint(model, checkpoint.task), tmp_path / "reverse-small")
    ship(tmp_path)


def test_the_screen_opens_on_a_head_with_a_pattern_and_describes_it(open_page: Open) -> None:
    shown = text(open_page(PAGE, model="characters", input="To be, or not"))
    assert "of attention is on the previous token" in shown
    assert re.search(r"Without it, the loss changes by \+\d\.\d\d nats", shown)  # a text has no right answers to count


def test_an_ablation_without_effect_is_not_reported_as_a_change_of_the_loss(open_page: Open) -> None:
    drawing = "drawn g90cd500dgebg90008ggg60007fgg200001gg300001gg600001gg600000bga"
    shown = text(open_page(PAGE, model="digits", input=drawing, head="1.3"))
    assert "Without it, the loss stays the same to within 0.005 nats." in shown
    assert "loss changes" not in shown
    shown = text(open_page(PAGE, model="digits", input="test 0"))
    assert "of attention goes from the class token to patches with ink (uniform: 53%)" in shown


def test_the_headline_states_the_pattern_of_a_head_and_the_effect_of_ablating_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11")
    assert "**layer 2 · head 1**: 99.9% of attention is on the mirrored token" in text(app)
    assert "(uniform: 14%). Without it, 2 of 7 answers are right." in text(app)
    next(button for button in app.button if button.key == "switch_ablate:encoder.1.attn.0").click().run()
    assert "**layer 2 · head 1** is ablated: 5 of 7 predictions differ." in text(app)


def test_the_headline_of_rows_on_one_token_names_it_with_the_share_of_the_table(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11", mask="causal")
    scores = app.dataframe[0].value
    share = percent(scores["first"].iloc[1], 0)
    assert f"**layer 2 · head 1**: {share} of attention is on token 0 · 3 (uniform: 41%). Without it, 1 of 7" in text(
        app
    )
    assert "no simple pattern" not in text(app)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Focus("one_token", 0.834, 0.2, (4,)), ": 83% of attention is on token 4 · x (uniform: 20%)"),
        (Focus("one_token", 0.834, 0.4, (2, 4)), ": 83% of attention is on the 2 tokens “x” (uniform: 40%)"),
        (Focus("uniform", 0.04), " attends almost uniformly: 4% of its attention differs from it"),
        (Focus("uniform", 0.0), " attends almost uniformly: less than 1% of its attention differs from it"),
        (Focus("one_key"), ": this mask leaves each query a single key at most"),
        (Focus("none"), " follows no simple pattern on this input"),
    ],
)
def test_a_head_without_a_known_pattern_is_described_by_its_focus(seen: Focus, says: str) -> None:
    assert focus_words(seen, ["To", "be", "x", "or", "x"]) == says


@pytest.mark.usefixtures("untrained")
def test_an_untrained_model_has_no_head_with_a_pattern(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11")
    assert "follows no simple pattern" in text(app)
    assert "of attention" not in text(app)


def test_the_notes_follow_the_mask(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12 9 4 11", mask="causal")
    assert "Set the mask" not in text(app)
    assert "Hatched" in text(app)
    app.sidebar.text_input(key="input").set_value("5").run()  # with a single token the mask has no effect
    app.sidebar.segmented_control(key="mask").set_value("as trained").run()
    assert "Set the mask" not in text(app)
    app.sidebar.text_input(key="input").set_value("3 7 12 9 4 11").run()
    assert "3 of 6 outputs need a later token" in text(app)
    assert "Hatched" not in text(app)


def test_a_switch_that_cannot_be_switched_on_can_be_switched_off(open_page: Open) -> None:
    solo = "solo:encoder.1.attn.0"  # the layer has one head
    for edits, disabled in (("", True), (solo, False)):
        app = open_page(PAGE, model="reverse-small", input="3 7 12 9", head="2.1", panel="change", edits=edits)
        assert app.button(key=f"switch_{solo}").disabled == disabled
