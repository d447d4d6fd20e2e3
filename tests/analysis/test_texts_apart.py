"""Two texts of different tokens are compared by characters."""

from __future__ import annotations

import math

import pytest

from xformer.analysis.differences import SaidText, bits_per_character, parting, pieces

WORDS = ["dr", "ink", " to", " Mary", " John", "drink", "."]


def said(*tokens: tuple[str, float]) -> SaidText:
    return SaidText.of(lambda ids: "".join(WORDS[one] for one in ids), [(WORDS.index(word), p) for word, p in tokens])


def test_texts_part_at_a_character_whatever_their_tokens_are() -> None:
    one = said(("dr", 0.5), ("ink", 0.4), (" to", 0.9), (" Mary", 0.8))
    other = said(("drink", 0.3), (" to", 0.7), (" John", 0.6))
    assert parting(one, other) == len("drink to ")
    table = pieces(one, other)
    assert table["A says"].tolist() == ["drink", " to", " Mary"]
    assert table["B says"].tolist() == ["drink", " to", " John"]
    assert table["tokens of A"].tolist() == [2, 1, 1]
    assert table["p of A"].tolist() == pytest.approx([0.2, 0.9, 0.8])
    assert table["p of B"].tolist() == pytest.approx([0.3, 0.7, 0.6])


def test_where_one_only_goes_on_further_they_do_not_part() -> None:
    one, other = said(("drink", 0.5)), said(("dr", 0.5), ("ink", 0.5), (".", 0.5))
    assert parting(one, other) is None
    assert pieces(one, other)["A says"].tolist() == ["drink"]
    assert pieces(said(("dr", 0.5)), said((" to", 0.5)))["B says"].tolist() == [" to"]


def test_bits_of_characters_know_no_tokens() -> None:
    assert bits_per_character(math.log(4), 3, 12) == pytest.approx(0.5)
    assert math.isnan(bits_per_character(1.0, 3, 0))
