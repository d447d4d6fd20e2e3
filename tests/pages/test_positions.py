"""The Positions screen: every shipped model, every kind of positions, off and on again, links, and code that runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import xformer
from pages.positions.panels import question, what_happened
from tests.layers.reference import FITTING
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import ROOT, Open
from tests.pages.test_explore import ONE_OF_EACH_KIND, text
from tests.pages.test_explore import messages as complaints
from tests.training.tiny import tiny_model, tiny_task
from xformer import analysis
from xformer.positions import POSITION_KINDS
from xformer.reading import rerun

PAGE = "pages/positions/page.py"


@pytest.fixture(scope="module")
def fresh_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of fresh models, one for each kind and architecture."""
    folder = tmp_path_factory.mktemp("kinds")
    for architecture in ("encoder", "decoder", "encoder-decoder"):
        for kind in (kind for fits, kind in FITTING if fits == architecture):
            task = tiny_task(architecture)
            model = xformer.Transformer(tiny_model(task, positions=kind), torch.Generator().manual_seed(0)).eval()
            xformer.save(xformer.Checkpoint(model, task), folder / f"{architecture}-{kind}")
    return folder


@pytest.fixture
def kinds(fresh_models: Path, ship: Callable[[Path], None]) -> None:
    """Fresh models of all kinds in place of the shipped ones."""
    ship(fresh_models)


@pytest.mark.parametrize("model", ONE_OF_EACH_KIND)
def test_every_model_opens_and_loses_its_way_without_positions(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert complaints(app) == []
    app.button(key="positions_off").click().run()
    assert complaints(app) == []
    assert app.query_params["edits"] == "positions:off"
    checkpoint = xformer.load(ROOT / "checkpoints" / model)
    assert checkpoint.task is not None
    example = checkpoint.task.example(checkpoint.task.vocabulary.read(app.query_params["input"]))
    losses = []
    for edits in ([], [xformer.edits.zero_positions()]):
        logits = xformer.record(checkpoint.model, example.stream, example.target, edits=edits).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0], example.labels[0], ignore_index=-100).item())
    shown = re.search(r"Without positions .*the loss goes from ([\d.]+) to ([\d.]+) nats", text(app))
    assert shown is not None
    # Four decimals are shown, and −log softmax rounds a little otherwise than cross_entropy does in float32.
    assert [float(number) for number in shown.groups()] == pytest.approx(losses, rel=1e-5, abs=1e-4)
    app.button(key="positions_off").click().run()
    assert "edits" not in app.query_params
    assert "instead of" not in text(app)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *((architecture, kind) for architecture, kind in FITTING if architecture == "encoder"),
        *(("decoder", "rotary"), ("decoder", "t5"), ("encoder-decoder", "learned"), ("encoder-decoder", "alibi")),
    ],
)
@pytest.mark.usefixtures("kinds")
def test_every_kind_of_positions_has_its_own_picture(open_page: Open, kind: str, architecture: str) -> None:
    app = open_page(PAGE, model=f"{architecture}-{kind}", input="3 1 2", show="kinds")
    assert complaints(app) == []
    panels = app.segmented_control(key="positions_show").options
    assert any(option == POSITION_KINDS[kind].title for option in panels) == (kind != "none")
    shown = [element.value for element in app.subheader]
    assert sum("this model" in title for title in shown) == 1
    assert text(app).count("has learned no vectors of this kind") == 2 - (kind in ("learned", "mirror"))
    assert ("has learned no biases of this kind" in text(app)) == (kind != "t5")
    off = [button for button in app.button if button.key == "positions_off"]
    assert len(off) == (kind != "none")
    for show in ("attention", "own", "offsets"):
        if any(name == show for name in _names(kind)):
            app.segmented_control(key="positions_show").set_value(show).run()
            assert complaints(app) == []
    if off:
        app.button(key="positions_off").click().run()
        assert complaints(app) == []
        assert "instead of" in text(app) or "nothing changes" in text(app)
    else:
        assert "no positions that could be switched off" in text(app)


def _names(kind: str) -> list[str]:
    biases = ["attention", "offsets"]
    return {"none": [], "alibi": biases, "t5": biases}.get(kind, ["attention", "own", "offsets"])


def test_the_result_is_hidden_before_positions_are_switched_off(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11")
    assert "look without positions? Click a cell in its row." in text(app)
    assert "moves" not in text(app)
    assert "the loss goes" not in text(app)
    assert len(app.get("vega_lite_chart")) == 2
    app.button(key="positions_off").click().run()
    assert "look without positions?" not in text(app)
    run = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11")
    off = rerun(run, [xformer.edits.zero_positions()])
    share = analysis.attention_moved(off, before=run)["moved"].max()
    assert f"**{share:.0%}** of layer 2 · head 1’s attention moves, and **{off.n_correct}** of 7" in text(app)
    assert len(app.get("vega_lite_chart")) == 3


def test_nothing_is_asked_or_said_where_nothing_moves() -> None:
    run = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11")
    off = rerun(run, [xformer.edits.zero_positions()])
    for after, says in ((off, True), (run, False)):
        moved = analysis.attention_moved(after, before=run)
        assert bool(question(run, after, 1, 0)[1]) == says
        assert bool(what_happened(run, after, moved, 1, 0)) == says


def test_positions_go_off_and_the_other_changes_stay(open_page: Open) -> None:
    change, text_typed = "ablate:encoder.0.attn.0", "3 7 12 9 4 11"
    app = open_page(PAGE, model="reverse-small", input=text_typed, edits=f"{change},positions:off", watch="2.1")
    on, off = (
        xformer.read("checkpoints/reverse-small", text_typed, changes=changes)
        for changes in (change, f"{change},positions:off")
    )
    assert what_happened(on, off, analysis.attention_moved(off, before=on), 1, 0) in text(app)


def test_one_answer_is_not_counted(open_page: Open) -> None:
    app = open_page(PAGE, model="digits", edits="positions:off")
    assert "attention moves." in text(app)
    assert "of 1 answers" not in text(app)


def test_a_guess_is_compared_with_what_happened(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-small", input="3 7 12 9 4 11", edits="positions:off")
    of = ("reverse-small", (3, 7, 12, 9, 4, 11), 1, 0)
    run = xformer.read("checkpoints/reverse-small", "3 7 12 9 4 11", edits=[xformer.edits.zero_positions()])
    cells = analysis.attention(run, layer=1, head=0)
    row = cells.query("query == '6 end'").nlargest(1, "weight")
    best = row["key"].iloc[0]
    for guess in (best, "0 3"):
        app.session_state["positions_guess"] = (of, "6 end", guess)
        app.run()
        assert (f"You were right: 6 end now looks most at **{best}**" in text(app)) == (guess == best)
        assert ("You guessed 0 3:" in text(app)) == (guess != best)
        assert "attention moves" not in text(app)


@pytest.mark.parametrize(
    ("model", "blind"), [("reverse", True), ("digits", True), ("modular", False), ("induction", False)]
)
def test_a_statement_about_order_needs_a_measured_result(open_page: Open, model: str, blind: bool) -> None:
    app = open_page(PAGE, model=model, show="kinds")
    assert complaints(app) == []
    [metric] = app.metric
    assert (float(metric.value) < 1e-3) == blind
    assert ("without positions this model sees a bag of" in text(app)) == blind
    assert ("The outputs differ" in text(app)) == (not blind)
    if model == "digits":
        assert "its patches in reverse order. The outputs are the same" in text(app)


def test_equal_tokens_get_no_statement_about_order(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", show="kinds", input="5 5 5")
    assert len(app.metric) == 0
    assert "Run with positions off" not in text(app)


def test_the_map_of_patches_is_said_to_be_there_only_above_chance(open_page: Open) -> None:
    app = open_page(PAGE, model="digits", show="places")
    assert complaints(app) == []
    assert "no more than chance" in text(app)
    assert "form a square of" not in text(app)


def test_notes_hold_for_a_text_and_under_a_mask(open_page: Open) -> None:
    off = {"edits": "positions:off"}
    app = open_page(PAGE, model="characters", **off)
    assert "Without positions the loss goes from" in text(app)
    assert "are right instead" not in text(app)
    app = open_page(PAGE, model="reverse", mask="causal", **off)
    assert "comes from the **causal mask**" in text(app)
    app = open_page(PAGE, model="reverse", **off)
    assert "only their **order** is lost" in text(app)
    assert "causal mask" not in text(app)


def test_another_head_and_other_waves_by_link(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", watch="2.3")
    assert complaints(app) == []
    assert app.selectbox(key="watch").value == "2.3"
    assert app.query_params["watch"] == "2.3"
    app.selectbox(key="watch").set_value("most").run()
    assert app.query_params["watch"] == "most"
    app = open_page(PAGE, model="reverse", waves="3-0", show="own")
    assert complaints(app) == []
    assert app.multiselect(key="waves").value == [3, 0]
    assert app.query_params["waves"] == "3-0"


@pytest.mark.parametrize(
    ("name", "value", "show"),
    [("watch", "9.9", "attention"), ("watch", "x", "attention"), ("waves", "3-99", "own"), ("waves", "²", "own")],
)  # fmt: skip
def test_a_link_to_what_is_not_here_says_so(open_page: Open, name: str, value: str, show: str) -> None:
    app = open_page(PAGE, model="reverse", show=show, **{name: value})
    assert not app.exception
    assert len(app.warning) == 1


def test_going_to_a_smaller_model_keeps_the_screen_alive(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-decoder", waves="63-1", show="own")
    assert complaints(app) == []
    app.sidebar.selectbox(key="model").set_value("reverse-mirror").run()
    assert complaints(app) == []
    app.segmented_control(key="positions_show").set_value("attention").run()
    assert complaints(app) == []


def test_a_long_input_is_drawn_in_blocks(open_page: Open, tmp_path: Path, ship: Callable[[Path], None]) -> None:
    task = tiny_task("encoder")
    model = xformer.Transformer(tiny_model(task, max_len=300), torch.Generator().manual_seed(0)).eval()
    xformer.save(xformer.Checkpoint(model, task), tmp_path / "long")
    ship(tmp_path)
    app = open_page(PAGE, model="long", input=" ".join(["3", "1", "2"] * 50))
    assert [value for value in complaints(app) if "raining" not in value] == []
    assert "150 positions in blocks of 3" in text(app)
    assert max(len(chart.proto.SerializeToString()) for chart in app.get("vega_lite_chart")) < 400_000
    app = open_page(PAGE, model="long", show="own", **{"from": "130"})
    assert "Positions 128 to 255 of 300" in text(app)
    assert app.query_params["from"] == "128"


@pytest.mark.parametrize(
    "link",
    [
        {"edits": "positions:off,token:1.9"},
        {"show": "offsets", "model": "reverse-seq2seq", "side": "decoder"},
        {"show": "kinds"},
        {"show": "own", "model": "induction"},
        {"show": "places", "model": "digits"},
    ],
)
def test_the_code_of_each_picture_draws_that_very_picture(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, link: dict[str, str]
) -> None:
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, {"model": "reverse"} | link)
    assert complaints(app) == []


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_what_t5_has_learned_is_drawn_and_its_code_draws_that_very_picture(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    link = {"model": f"{architecture}-t5", "input": "3 1 2", "show": "offsets"}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link)
    assert complaints(app) == []
    assert "has learned to add to a score" in text(app)
