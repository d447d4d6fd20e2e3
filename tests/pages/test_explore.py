"""Home and Attention with shipped models: masks, invalid input, long input, and changes in a link."""

from __future__ import annotations

import re

import xformer
from tests.pages.conftest import ROOT, Open, complaints, strip_lanes, text

ATTENTION = "pages/attention/page.py"


def test_verdict_states_whether_a_mask_changes_the_answers(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", mask="full")
    assert "nothing changes" in text(app)
    app.sidebar.segmented_control(key="mask").set_value("causal").run()
    assert "right** instead of 6" in text(app)
    assert "nothing changes" not in text(app)


def test_invalid_input_shows_one_error_and_keeps_the_last_picture(open_page: Open) -> None:
    app = open_page(model="reverse", input="4 9 2")
    assert "All tokens right" in text(app)
    for typed, sentence in (
        ("<b>bold</b>", "“<b>bold</b>” is not one"),
        ("", "Type some numbers from 1 to 19"),
        ("1 " * 70, "This model reads at most 64 tokens"),
    ):
        app.sidebar.text_input(key="input").set_value(typed).run()
        [shown_text] = complaints(app)
        assert sentence in shown_text
        assert "Still showing the last input" in text(app)


def test_input_longer_than_in_training_is_allowed_with_a_remark(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", input=" ".join(["3"] * 20))
    assert "trained on 3 to 15" in text(app)


def test_changes_in_a_link_can_be_removed_and_unfit_ones_are_ignored(open_page: Open) -> None:
    fit, unfit = "ablate:encoder.2.attn.1,positions:off", "ablate:encoder.7.attn.1,nonsense"
    app = open_page(ATTENTION, model="reverse", edits=f"{unfit},{fit}")
    assert len(app.warning) == 2
    assert strip_lanes(app)[-1]["name"] == "with 2 changes"
    app.button(key="chip_positions:off").click().run()
    assert strip_lanes(app)[-1]["name"] == "with 1 change"
    app.button(key="chip_ablate:encoder.2.attn.1").click().run()
    assert strip_lanes(app)[-1]["name"] == "predicts"
    assert complaints(app) == []


def test_scores_on_screen_match_the_library(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", input="4 9 2 11 5")
    shown = app.dataframe[0].value
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    expected = xformer.analysis.head_scores(xformer.read(checkpoint, "4 9 2 11 5"))
    for column in ("diagonal", "anti_diagonal", "previous", "next", "first", "entropy"):
        assert shown[column].tolist() == expected[column].tolist()


def test_published_sizes_are_counted_by_part_and_the_model_runs_with_random_weights(open_page: Open) -> None:
    app = open_page(more="paper")
    assert "**63,045,632** by formula; **65 M** printed in Vaswani et al. 2017, Table 3" in text(app)
    assert app.dataframe[0].value["numbers"].sum() == 63_045_632
    app.button(key="run_transformer-base").click().run(timeout=120)
    found = re.search(r"logits \[1, 9, 37000\].* Its loss on random tokens is \*\*([\d.]+)\*\*", text(app))
    assert found is not None
    assert float(found[1]) > 5  # an untrained model: ln 37,000 is 10.5
    app.segmented_control(key="paper").set_value("base, over-counted").run()
    assert complaints(app) == []
    assert "**79,465,728**" in text(app)
    assert app.dataframe[0].value["numbers"].sum() == 79_465_728
