"""The Masks screen: presets, switches, marks, the run under the mask, its code, and what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xformer
from tests.pages.code_and_picture import assert_code_draws, charts_shown
from tests.pages.conftest import ROOT, Open, complaints, everything, in_link, strip_lanes, text
from xformer import edits, masks
from xformer.masks import MaskRecipe
from xformer.masks.recipe import LIBRARIES

PAGE = "pages/masks/page.py"
INPUT = "3 7 12 9 1"


def _code(app: Any) -> str:
    [code] = [one.value for one in app.code if "torch" in one.value and "xformer" not in one.value]
    return code


def test_the_link_opens_a_mask_and_the_model_runs_under_it(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input=INPUT, rule="causal,window:2")
    assert complaints(app) == []
    assert app.toggle(key="mask_causal").value is True
    assert app.number_input(key="mask_window").value == 2
    assert in_link(app, "rule") == "causal,window:2"
    cells = masks.as_mask(masks.causal() & masks.window(2), n_query=5).cells()
    folder = ROOT / "checkpoints" / "reverse"
    original = xformer.read(folder, INPUT)
    masked = xformer.read(folder, INPUT, edits=[edits.set_mask("*attn", cells)])
    lane = strip_lanes(app)[-1]
    assert lane["name"] == "with this mask"
    changed = sum(a != b for a, b in zip(original.predicted, masked.predicted, strict=True))
    assert f"Under this mask **{changed}** of 5 predictions change" in text(app)
    assert len(app.get("vega_lite_chart")) == 3


def test_a_preset_sets_all_switches(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input=INPUT, rule="full,documents:2")
    app.button(key="preset_Window with a sink").click().run()
    assert in_link(app, "rule") == "causal,window:2,sinks:1"
    assert app.number_input(key="mask_sinks").value == 1
    app.button(key="preset_Packed documents").click().run()
    assert in_link(app, "rule") == "causal,documents:1.2"
    assert complaints(app) == []


def test_switches_and_marks_change_the_mask(open_page: Open) -> None:
    app = open_page(PAGE, model="characters", input="import os")
    app.toggle(key="mask_causal").set_value(False).run()
    app.number_input(key="mask_window").set_value(3).run()
    app.segmented_control(key="mask_mark").set_value("padding").run()
    app.pills(key="marked_padding").set_value([0, 1]).run()
    assert in_link(app, "rule") == "full,window:3,padding:0.1"
    app.segmented_control(key="mask_mark").set_value("documents").run()
    app.pills(key="marked_documents").set_value([6]).run()
    assert in_link(app, "rule") == "full,window:3,documents:6,padding:0.1"
    assert "window 3 on each side, 2 documents at 0, 6, keys 0–1 are padding" in everything(app)
    assert complaints(app) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_code_on_screen_makes_the_mask_on_screen(open_page: Open, library: str) -> None:
    rule = "causal,window:3,sinks:1,documents:4,blocks:5.6"
    app = open_page(PAGE, model="characters", input="import os", rule=rule, library=library)
    made: dict[str, Any] = {}
    exec(_code(app), made)
    found = {
        "flex_attention": lambda: masks.as_mask(made["block_mask"]).cells(),
        "transformers": lambda: made["mask"][0, 0],
        "torch": lambda: made["allowed"],
    }[library]()
    assert torch.equal(found, masks.as_mask(MaskRecipe.parse(rule).rule(9), n_query=9).cells())


@pytest.mark.parametrize("model", ["reverse-small", "characters", "digits"])
def test_the_code_of_the_pictures_draws_them(open_page: Open, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    shown = charts_shown(monkeypatch)
    app = open_page(PAGE, model=model, rule="causal,documents:2")
    assert complaints(app) == []
    pictures = [one for one in app.code if "xformer" in one.value]
    assert_code_draws(SimpleNamespace(exception=app.exception, code=pictures), shown)  # pyright: ignore[reportArgumentType]


def test_marks_beyond_the_input_wait_for_a_longer_one(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="3 7 12", rule="causal,documents:2.9")
    assert in_link(app, "rule") == "causal,documents:2.9"
    assert app.pills(key="marked_documents").value == [2]
    assert complaints(app) == []


def test_an_unknown_rule_is_reported_once(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input=INPUT, rule="causal,windw:2")
    assert len(complaints(app)) == 1
    assert in_link(app, "rule") == "causal"


def _says(open_page: Open, sentence: str, rule: str) -> bool:
    return sentence in everything(open_page(PAGE, model="characters", input="import os", rule=rule))


@pytest.mark.parametrize(
    ("sentence", "rule", "other"),
    [
        ("This is the model’s own mask", "causal", "causal,window:3"),
        ("Query 0 sees no key at all", "causal,padding:0", "causal,padding:8"),
        ("2 queries see no key at all", "causal,padding:0.1", "causal,padding:8"),
        ("an output depends on up to 5 tokens", "causal,window:2", "causal,window:3"),
        ("reaches further than it looks", "causal,window:2", "causal,window:4"),
        ("not in the positions", "causal,documents:4", "causal"),
        ("no prediction changes", "causal", "causal,window:1"),
        ("The mask: **causal, window 3**; 24 of 81 cells", "causal,window:3", "causal"),
    ],
)
def test_each_sentence_has_its_condition(open_page: Open, sentence: str, rule: str, other: str) -> None:
    assert _says(open_page, sentence, rule)
    assert not _says(open_page, sentence, other)


def test_a_model_with_two_stacks_is_told_so(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", rule="causal,window:2")
    assert "for models with one stack" in text(app)
    assert complaints(app) == []
