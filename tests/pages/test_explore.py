"""Home and Attention, for every shipped model, with good links, bad links and bad input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import xformer
from tests.pages.conftest import ROOT, Open, plain, strip_lanes

ATTENTION = "pages/attention/page.py"
MODELS = sorted(path.parent.name for path in Path(ROOT / "checkpoints").glob("*/model.safetensors"))
ONE_OF_EACH_KIND = [
    *("reverse-small", "reverse-seq2seq", "reverse-decoder", "reverse-mirror", "reverse-modern"),
    *("parity", "characters", "digits"),
]
"""Shipped models of every architecture and kind of input; the others differ from one of them in weights and task alone."""


def messages(app: object) -> list[str]:
    return [element.value for kind in ("error", "warning", "exception") for element in getattr(app, kind)]


def text(app: object) -> str:
    return " ".join(element.value for kind in ("caption", "markdown", "info") for element in getattr(app, kind))


@pytest.mark.parametrize("model", ONE_OF_EACH_KIND)
def test_every_kind_of_model_opens(open_page: Open, model: str) -> None:
    assert set(MODELS) > set(ONE_OF_EACH_KIND)
    app = open_page(ATTENTION, model=model)
    assert messages(app) == []
    assert app.sidebar.selectbox(key="model").value == model
    verdict = {
        "characters": r"There is no right answer|Actual next character",
        "digits": r"which is right|1 of 1 right",
    }
    assert re.search(verdict.get(model, r"of \d+ right|Every token is right"), text(app))


def test_a_mask_is_said_to_spoil_the_answers_or_to_change_nothing(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", mask="full")
    assert "nothing changes" in text(app)
    app.sidebar.segmented_control(key="mask").set_value("causal").run()
    assert "right** instead of 6" in text(app)
    assert "nothing changes" not in text(app)


def test_bad_input_gets_one_sentence_and_the_last_picture_stays(open_page: Open) -> None:
    app = open_page(model="reverse", input="4 9 2")
    assert "Every token is right" in text(app)
    for typed, sentence in (
        ("<b>bold</b>", "“<b>bold</b>” is not one"),
        ("", "Type some numbers from 1 to 19"),
        ("1 " * 70, "This model reads at most 64 tokens"),
    ):
        app.sidebar.text_input(key="input").set_value(typed).run()
        assert not app.exception
        [shown_text] = [plain(element.value) for element in app.error]
        assert sentence in shown_text
        assert "Still showing the last input" in text(app)
    next(button for button in app.sidebar.button if "equal numbers" in button.label).click().run()
    assert app.sidebar.text_input(key="input").value == "5 5 5 5 9 9 9 9"
    assert messages(app) == []
    app.sidebar.button(key="random_input").click().run()
    assert app.sidebar.text_input(key="input").value != "5 5 5 5 9 9 9 9"
    assert messages(app) == []


@pytest.mark.parametrize(("name", "value"), [("mask", "gas"), ("model", "../../etc"), ("model", "")])
def test_a_link_to_what_is_not_here_says_so(open_page: Open, name: str, value: str) -> None:
    app = open_page(**{name: value})
    assert [f"a {name} that is not here" in element.value for element in app.warning] == [True]


def test_more_than_it_was_trained_on_is_allowed_and_announced(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", input=" ".join(["3"] * 20))
    assert "trained on 3 to 15" in text(app)


def test_interventions_of_a_link_are_on_and_can_be_taken_back(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", edits="ablate:encoder.2.attn.1,positions:off")
    assert strip_lanes(app)[-1]["name"] == "with 2 changes"
    app.button(key="chip_positions:off").click().run()
    assert strip_lanes(app)[-1]["name"] == "with 1 change"
    app.button(key="chip_ablate:encoder.2.attn.1").click().run()
    assert strip_lanes(app)[-1]["name"] == "says"
    assert messages(app) == []


def test_an_intervention_that_does_not_fit_is_ignored_with_a_warning(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", edits="ablate:encoder.7.attn.1,nonsense,ablate:encoder.2.attn.1")
    assert len(app.warning) == 2
    assert strip_lanes(app)[-1]["name"] == "with 1 change"


def test_the_scores_on_screen_are_those_of_the_library(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", input="4 9 2 11 5")
    shown = app.dataframe[0].value
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    expected = xformer.analysis.head_scores(xformer.read(checkpoint, "4 9 2 11 5"))
    for column in ("diagonal", "anti_diagonal", "previous", "next", "first", "entropy"):
        assert shown[column].tolist() == expected[column].tolist()


def test_the_papers_sizes_are_counted_by_part_and_the_model_runs(open_page: Open) -> None:
    app = open_page(more="paper")
    assert "**63,045,632** by formula; **65 M** printed in Vaswani et al. 2017, Table 3" in text(app)
    assert app.dataframe[0].value["numbers"].sum() == 63_045_632
    app.segmented_control(key="paper").set_value("base, over-counted").run()
    assert not app.exception
    assert "**79,465,728**" in text(app)
    assert app.dataframe[0].value["numbers"].sum() == 79_465_728


def test_the_papers_base_model_runs_with_random_weights(open_page: Open) -> None:
    app = open_page(more="paper")
    app.button(key="run_transformer-base").click().run(timeout=120)
    assert not app.exception
    found = re.search(r"logits \[1, 9, 37000\].* Its loss on random tokens is \*\*([\d.]+)\*\*", text(app))
    assert found is not None
    assert float(found[1]) > 5  # it knows nothing: ln 37,000 is 10.5
