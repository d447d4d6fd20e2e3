"""The Embeddings screen: its panels, headlines and notes, and its numbers against the library."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

import xformer
from pages.embeddings.page import _verdict, about_lengths, about_order
from tests.pages.conftest import ROOT, Open, complaints, components, text
from xformer.analysis.embeddings import Nearness, neighbours
from xformer.analysis.number_waves import Spectrum

PAGE = "pages/embeddings/page.py"


def test_an_encoder_decoder_shows_two_sides_with_a_shared_matrix(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", input="4 9 2")
    assert "**share** one embedding matrix" in text(app)
    app.segmented_control(key="embeddings_show").set_value("vocabulary").run()
    app.segmented_control(key="side").set_value("decoder").run()
    assert complaints(app) == []
    assert app.query_params["side"] == "decoder"
    assert app.selectbox(key="near").value == "4"


def test_the_neighbours_on_screen_are_those_of_the_library(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", near="7", show="vocabulary")
    expected = neighbours(xformer.read(ROOT / "checkpoints/reverse", "3 7"), token=7)
    assert app.dataframe[0].value["token"].tolist() == expected["token"].tolist()
    assert app.dataframe[0].value["cosine"].tolist() == expected["cosine"].tolist()


def sums(app: Any) -> list[Any]:
    """Return the data of the animations on screen."""
    return [json.loads(proto.bytes) for proto in components(app, "embedding_sum")]


def test_changed_vectors_are_drawn_below_the_original(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", edits="positions:off")
    before, after = sums(app)
    assert any(any(row) for row in before["columns"][1]["values"])
    assert not any(any(row) for row in after["columns"][1]["values"])
    app.button(key="chip_positions:off").click().run()
    app.segmented_control(key="mask").set_value("causal").run()
    assert "these vectors do not change" in text(app)
    assert len(sums(app)) == 1


def test_the_headline_compares_the_vectors_of_a_repeated_token(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="5 8 5")
    assert "**5** is at positions 0 and 2: one token vector, but two different sums" in text(app)
    assert "from" not in app.query_params  # short inputs have no window
    app.sidebar.text_input(key="input").set_value("5 8 6").run()
    assert "at positions 0 and" not in text(app)
    assert "side" not in app.query_params
    app = open_page(PAGE, model="induction", input="5 8 5")  # this model adds no positions
    assert "enters layer 1 as the same vector: this model adds no positions" in text(app)


def test_the_headline_is_empty_where_norms_are_close_or_zero() -> None:
    close = {"tokens": torch.ones(3, 4), "positions": 1.4 * torch.ones(3, 4)}
    assert about_lengths(close, "token") == about_lengths(close | {"positions": torch.zeros(3, 4)}, "token") == ""
    assert about_lengths({"tokens": torch.ones(3, 4)}, "token") == ""
    assert "The vector of a token is 2.0 times" in about_lengths(close | {"positions": 0.5 * torch.ones(3, 4)}, "token")


def test_only_numbers_with_clear_frequencies_are_described_as_waves(open_page: Open) -> None:
    app = open_page(PAGE, model="modular", show="vocabulary")
    assert "2 of the 29 frequencies, 1 and 17, hold 79% of the variance" in text(app)
    assert "lie on a **circle**" in text(app)
    app = open_page(PAGE, model="reverse", show="vocabulary")
    assert "frequenc" not in text(app)
    assert "in order" not in text(app)
    app.segmented_control(key="embeddings_show").set_value("waves").run()
    assert "No frequency stands out clearly" in text(app)


def test_the_bound_from_shuffles_is_rounded_up() -> None:
    note = about_order(300, Nearness(0.2944, 0.0101, 0.2941, 300))
    assert "For 29.4% of the 300" in note
    assert "never more than 29.5%" in note
    assert about_order(300, Nearness(0.2941, 0.0101, 0.2941, 300)) == ""
    assert "For 29.4% of 50 of the 300 numbers" in about_order(300, Nearness(0.2944, 0.0101, 0.2941, 50))


def test_the_bound_from_random_orders_is_rounded_up() -> None:
    shares = torch.tensor([0.8, 0.1, 0.1])
    found = Spectrum(6, shares, chance=0.12412, n_shuffles=9)
    assert "no frequency holds more than 12.5%." in _verdict(found)
    assert "one held 62.1%." in _verdict(replace(found, chance=0.62061))
