"""A token of a large vocabulary is found by its text."""

from __future__ import annotations

import pytest
import torch

from pages.shared.widgets import find_tokens
from xformer.analysis.embeddings import cosine_matrix, cosines_with, pca

LABELS = ["the", "·Paris", "Paris", "·Parisian", "·in", "Par", "·a·b"]


def test_a_token_is_found_by_itself_then_by_what_holds_it() -> None:
    assert find_tokens(LABELS, "Paris") == [2, 1, 3]
    assert find_tokens(LABELS, " Paris") == [1, 3]
    assert find_tokens(LABELS, "paris")[0] == 2
    assert find_tokens(LABELS, "a b") == [6]
    assert find_tokens(LABELS, "Rome") == []
    assert find_tokens(LABELS, "") == []
    assert len(find_tokens(["x" * n for n in range(1, 99)], "x")) == 30


def test_very_many_vectors_have_the_same_axes_and_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(400, 12, generator=draw, dtype=torch.float32) * torch.arange(1, 13) + 3
    few, cosines = pca(vectors, 3), cosine_matrix(vectors)[7]
    monkeypatch.setattr("xformer.analysis.embeddings.MOST_IN_DOUBLE", 100)
    many = pca(vectors, 3)
    for name in ("mean", "axes", "points", "explained"):
        torch.testing.assert_close(getattr(many, name), getattr(few, name), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cosines_with(vectors, 7), cosines, rtol=0, atol=1e-6)
