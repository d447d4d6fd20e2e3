"""The Positions screen: kinds of positions, switching them off and on, the guess, notes, long inputs and the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import xformer
from pages.positions.page import moved_sentence, question
from pages.state.view import OFF
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open, complaints, in_link, text
from tests.training.tiny import tiny_model, tiny_task
from xformer import analysis
from xformer.positions import POSITION_KINDS
from xformer.reading import rerun

PAGE = "pages/positions/page.py"
KINDS = [("encoder", "none"), ("decoder", "t5"), ("encoder-decoder", "learned")]


@pytest.fixture(scope="module")
def fresh_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save untrained models of several kinds and architectures, one of them for long inputs; return their folder."""
    folder = tmp_path_factory.mktemp("kinds")
    for architecture, kind in [*KINDS, ("encoder", "long")]:
        task = tiny_task(architecture)
        options: dict[str, Any] = {"max_len": 300} if kind == "long" else {"positions": kind}
        model = xformer.Transformer(tiny_model(task, **options), torch.Generator().manual_seed(0)).eval()
        xformer.save(xformer.Checkpoint(model, task), folder / f"{architecture}-{kind}")
    return folder


@pytest.fixture
def kinds(fresh_models: Path, ship: Callable[[Path], None]) -> None:
    """Replace the shipped models by the untrained ones."""
    ship(fresh_models)


@pytest.mark.parametrize(("architecture", "kind"), KINDS)
@pytest.mark.usefixtures("kinds")
def test_every_kind_of_positions_has_its_own_picture(open_page: Open, kind: str, architecture: str) -> None:
    app = open_page(PAGE, model=f"{architecture}-{kind}", input="3 1 2", show="kinds")
    assert complaints(app) == []
    panels = app.segmented_control(key="positions_show").options
    assert any(option == POSITION_KINDS[kind].title for option in panels) == (kind != "none")
    shown = [element.value for element in app.subheader]
    assert sum("this model" in title for title in shown) == 1
    assert len(shown) == len([one for one in POSITION_KINDS if one == kind or one not in ("learned", "mirror", "t5")])
    assert ("only training gives them values" in text(app)) == (len(shown) < len(POSITION_KINDS))
    assert ("no positions that could be switched off" in text(app)) == (kind == "none")
    if kind != "none":
        app.segmented_control(key="positions_show").set_value("attention" if kind == "t5" else "own").run()
        assert complaints(app) == []


def test_the_result_is_hidden_before_positions_are_switched_off(open_page: Open) -> None:
    change, typed = "ablate:encoder.0.attn.0", "3 7 12 9 4 11"
    app = open_page(PAGE, model="reverse-small", input=typed, edits=change, watch="2.1")
    assert "attend to without positions? Click a cell in its row." in text(app)
    assert "moves" not in text(app)
    assert len(app.get("vega_lite_chart")) == 2
    app.button(key="positions_off").click().run()
    assert "attend to without positions?" not in text(app)
    on, off = (xformer.read("checkpoints/reverse-small", typed, edits=on) for on in (change, f"{change},{OFF}"))
    share = analysis.attention_moved(off, before=on).set_index(["layer", "head"])["moved"]["encoder.1.attn", 0]
    assert f"**{share:.0%}** of layer 2 · head 1’s attention moves, and **{off.n_correct}** of 7" in text(app)
    assert "are right instead" in text(app)
    assert len(app.get("vega_lite_chart")) == 3
    shown = re.search(r"loss ([\d.]+) instead of ([\d.]+)", text(app))
    assert shown is not None
    unchanged = xformer.read("checkpoints/reverse-small", typed)
    assert [float(number) for number in shown.groups()] == pytest.approx([off.loss, unchanged.loss], abs=1e-4)
    app.button(key="positions_off").click().run()
    assert complaints(app) == []
    assert in_link(app, "edits") == change


def test_answers_of_a_text_are_not_counted(open_page: Open) -> None:
    app = open_page(PAGE, model="characters", edits=OFF)
    assert " bits instead of " in text(app)
    assert "are right instead" not in text(app)


def test_question_and_result_are_empty_where_nothing_moves() -> None:
    run = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11")
    off = rerun(run, [xformer.edits.zero_positions()])
    for after, has_moved in ((off, True), (run, False)):
        moved = analysis.attention_moved(after, before=run)
        assert bool(question(run, after, 1, 0)[1]) == has_moved
        assert bool(moved_sentence(run, after, moved, 1, 0)) == has_moved


def test_a_guess_is_compared_with_the_result(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11", edits="positions:off")
    of = ("reverse-small", (3, 7, 12, 9, 4, 11), 1, 0)
    run = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11", edits=[xformer.edits.zero_positions()])
    row = analysis.attention(run, layer=1, head=0).query("query == '6 · end'").nlargest(1, "weight")
    best = row["key"].iloc[0]
    for guess in (best, "0 · 3"):
        app.session_state["positions_guess"] = (of, "6 · end", guess)
        app.run()
        assert (f"You were right: 6 · end now attends most to **{best}**" in text(app)) == (guess == best)
        assert ("You guessed 0 · 3:" in text(app)) == (guess != best)
        assert "attention moves" not in text(app)


@pytest.mark.parametrize(("model", "blind"), [("digits", True), ("modular", False)])
def test_a_statement_about_order_needs_a_measured_result(open_page: Open, model: str, blind: bool) -> None:
    app = open_page(PAGE, model=model, show="kinds")
    assert complaints(app) == []
    [metric] = app.metric
    assert (float(metric.value) < 1e-3) == blind
    assert ("its patches in reverse order. The outputs are the same" in text(app)) == blind
    assert ("The outputs differ" in text(app)) == (not blind)
    if blind:
        app.segmented_control(key="positions_show").set_value("places").run()
        assert "no more than chance" in text(app)
    else:
        app = open_page(PAGE, model="reverse", show="kinds", input="5 5 5")
        assert len(app.metric) == 0  # reversing equal tokens tests nothing
        assert "Run with positions off" not in text(app)


def test_the_notes_follow_the_mask(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", mask="causal", edits="positions:off")
    assert "comes from the **causal mask**" in text(app)
    app.segmented_control(key="mask").set_value("as trained").run()
    assert "only their **order** is lost" in text(app)
    assert "causal mask" not in text(app)


def test_a_kind_without_a_caption_of_its_own_gets_that_of_what_it_acts_on(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(POSITION_KINDS["rotary"]), "offset_caption", lambda self, sizes: "")
    app = open_page(PAGE, model="induction", show="offsets")
    assert "The factor by which the rotation scales" in text(app)
    assert "The factor by which the rotation scales" not in text(open_page(PAGE, model="reverse", show="offsets"))


@pytest.mark.usefixtures("kinds")
def test_a_long_input_is_drawn_in_blocks(open_page: Open) -> None:
    app = open_page(PAGE, model="encoder-long", input=" ".join(["3", "1", "2"] * 50))
    assert [value for value in complaints(app) if "raining" not in value] == []
    assert "150 positions in blocks of 3" in text(app)
    assert max(len(chart.proto.SerializeToString()) for chart in app.get("vega_lite_chart")) < 400_000
    app = open_page(PAGE, model="encoder-long", show="own", **{"from": "130"})
    assert "128 of 300 positions" in text(app)
    assert app.query_params["from"] == "128"


@pytest.mark.usefixtures("kinds")
def test_learned_biases_are_drawn_by_screen_and_code(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"model": "decoder-t5", "input": "3 1 2", "show": "offsets"}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link)
    assert complaints(app) == []
    assert "has learned to add to a score" in text(app)
