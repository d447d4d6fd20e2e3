"""Searching a token of a large vocabulary by its text."""

from __future__ import annotations

import torch

from pages.controls.widgets import find_tokens
from xformer.analysis.embeddings import cosine_matrix, cosines_with

LABELS = ["the", "·Paris", "Paris", "·Parisian", "·in", "Par", "·a·b"]


def test_exact_matches_come_before_tokens_that_contain_the_text() -> None:
    assert find_tokens(LABELS, "Paris") == [2, 1, 3]
    assert find_tokens(LABELS, " Paris") == [1, 3]
    assert find_tokens(LABELS, "paris")[0] == 2
    assert find_tokens(LABELS, "a b") == [6]
    assert find_tokens(LABELS, "Rome") == []
    assert find_tokens(LABELS, "") == []
    assert len(find_tokens(["x" * n for n in range(1, 99)], "x")) == 30


def test_cosines_with_one_vector_match_the_row_of_the_cosine_matrix() -> None:
    vectors = torch.randn(31, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32) + 3
    torch.testing.assert_close(cosines_with(vectors, 7), cosine_matrix(vectors)[7], rtol=0, atol=1e-6)
