"""Comparisons within one model: two inputs and their patching map; a steered continuation, its code and link."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pages.compare.one_model import map_headline
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import Open, everything, in_link, plain
from xformer.analysis import patching_map
from xformer.analysis.minimal_pairs import MinimalPair
from xformer.reading import read

PAGE = "pages/compare/page.py"
LINK = {"model": "reverse", "compare": "pairs", "input": "3 7 12 9", "other": "3 7 13 9"}
SIX = "3 7 12 9 4 11"


def test_a_task_starts_with_a_proposed_pair(open_page: Open) -> None:
    app = open_page(PAGE, model="digits", compare="pairs")
    assert not app.error
    assert not app.info
    one, other = (app.text_input(key=key).value for key in ("input", "pair_other"))
    runs = [read("checkpoints/digits", text) for text in (one, other)]
    assert runs[0].answer != runs[1].answer  # an image of the same digit would show nothing
    pair = MinimalPair.of(*runs)
    assert pair.start - pair.goal > 1.0
    shown = everything(app).replace("−", "-")
    assert f"First **{pair.start:+.2f}**" in shown
    assert f"Second **{pair.goal:+.2f}**" in shown
    assert "measured **" in shown


def test_the_link_restores_every_choice(open_page: Open) -> None:
    link = {**LINK, "part": "head", "method": "quick", "output": "1", "answer": "12", "instead": "5", "cell": "3"}
    app = open_page(PAGE, **link)
    assert {name: in_link(app, name) for name in link} == link
    assert "logit(12) − logit(5)" in everything(app)
    assert "**layer 1 · head 4**: estimated" in everything(app)
    assert "A cell is one head, at all positions." in everything(app)
    assert "All 16 cells are measured." in everything(app)  # with either method


def test_the_choices_for_one_pair_are_not_kept_for_another(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, answer="12", instead="5", output="1", mask="causal")
    assert "without the mask and the changes of the other screens" in everything(app)
    app.text_input(key="pair_other").set_value("3 5 12 9").run()
    assert not app.exception
    assert (in_link(app, "output"), in_link(app, "answer")) == ("2", "")
    assert "logit(7) − logit(5)" in everything(app)
    app.button(key="pair_swap").click().run()
    assert [app.text_input(key=key).value for key in ("input", "pair_other")] == ["3 5 12 9", "3 7 12 9"]
    assert "logit(5) − logit(7)" in everything(app)


def test_an_invalid_choice_shows_a_message(open_page: Open) -> None:
    app = open_page(PAGE, **LINK, cell="99999", answer="quark")
    for name in ("cell", "token"):
        assert f"asks for a {name} that does not exist here" in everything(app)
    for other, message in (
        ("3 7 12 9 5", "The first has 4 tokens and the second 5"),
        ("3 7 12 9", "Both inputs are the same"),
        ("3 7 <b> 9", "The second input: This model reads numbers from 1 to 19, and “<b>” is not one"),
        ("x" * 300_000, "The second input: At most"),
    ):
        app.text_input(key="pair_other").set_value(other).run()
        assert not app.exception
        assert message in everything(app)
        assert len(app.info) + len(app.warning) == 1
    # At the output of the first number, which both share, the logits of two absent numbers differ equally in both runs.
    assert "There is nothing to explain" in everything(open_page(PAGE, **LINK, output="3", answer="16", instead="1"))
    app = open_page(PAGE, **{**LINK, "model": "induction", "part": "neurons"})
    assert "has no neurons that could be patched" in everything(app)


def notes(pair: MinimalPair, table: pd.DataFrame, part: Any) -> str:
    return plain(map_headline(pair, table, part))


def test_a_component_is_named_only_where_it_stands_out() -> None:
    pair = MinimalPair.of(*(read("checkpoints/induction", text) for text in ("3 7 12 5", "3 7 13 5")))
    heads = patching_map(pair.reading, pair.source, part="head", exact=True)
    assert notes(pair, heads, "head").startswith("**layer 2 · head 1** alone carries +1.0")
    alike = notes(pair, heads.assign(measured=[0.5, -0.45]), "head")
    assert alike.startswith("No head stands out: layer 1 · head 1 carries +0.50")
    assert "layer 2 · head 1 −0.45" in alike
    small = heads.assign(measured=[0.01, 0.09])
    assert notes(pair, small, "head") == "No head alone carries a tenth of the difference."
    some = notes(pair, pd.concat([heads, heads]).assign(measured=[0.5, 0.1, None, None]), "head")
    assert some.startswith("**layer 1 · head 1** alone carries +0.50 of the difference, the next one +0.10")
    assert some.endswith(" (of 2 measured).")
    assert notes(pair, heads.assign(measured=[None, 0.5]), "head") == ""


def test_the_note_on_positions_needs_measured_cells_and_contiguous_layers() -> None:
    pair = MinimalPair.of(*(read("checkpoints/reverse", text) for text in (SIX, "3 7 12 10 4 11")))
    stream = patching_map(pair.reading, pair.source, exact=True)
    message, measured = notes(pair, stream, "stream"), stream["measured"]
    assert message.startswith("Position 3 carries the difference up to **layer ")
    assert ", position 2 from **layer " in message
    missing = measured.where((stream["position"] != 2) | (stream["layer"] != 1))
    assert "osition" not in notes(pair, stream.assign(measured=missing), "stream")
    elsewhere = measured.where(stream["position"].isin([2, 3]))
    assert notes(pair, stream.assign(measured=elsewhere), "stream") == message
    gaps = measured.where(stream["layer"] != 1, 0.0)
    assert "Position 3" not in notes(pair, stream.assign(measured=gaps), "stream")
    two_changed = MinimalPair.of(*(read("checkpoints/reverse", text) for text in (SIX, "3 7 12 10 4 12")))
    stream = patching_map(two_changed.reading, two_changed.source, exact=True)
    assert "carries the difference up to" not in notes(two_changed, stream, "stream")


STEERING = {"compare": "steering", "model": "characters", "input": "The list of "}


def test_the_code_computes_both_continuations_again(open_page: Open) -> None:
    app = open_page(PAGE, **STEERING, towards="THE CLASS", away="the class", layer="2", scale="1")
    assert any("the continuation differs from character" in element.value for element in app.markdown)
    [chart, table] = left_by(next(element.value for element in app.code if "steered" in element.value))["picture"]
    assert chart.to_dict()["layer"]
    assert list(table["says"]) != list(table["steered_says"])
    assert app.query_params["towards"] == "THE CLASS"
    assert app.query_params["scale"] in ("1", ["1"])


def test_scale_0_changes_nothing(open_page: Open) -> None:
    app = open_page(PAGE, **STEERING, scale="0", layer="99")
    assert any("the continuation is the same" in element.value for element in app.markdown)
    assert any("asks for a layer" in warning.value for warning in app.warning)


def test_where_nothing_can_be_steered_a_message_says_why(open_page: Open) -> None:
    app = open_page(PAGE, **STEERING, towards="same", away="same")
    assert any("there is no direction" in info.value for info in app.info)
    app = open_page(PAGE, compare="steering", model="reverse", input="3 7 12")
    assert any("does not continue texts" in info.value for info in app.info)
