"""Widgets: a token is found by its text; too long a pasted text is refused, and a lone surrogate is replaced."""

from __future__ import annotations

import pytest
import torch

from pages.controls.widgets import find_tokens, validate_text
from tests.pages.conftest import Open, complaints
from xformer.analysis.embeddings import cosine_matrix, cosines_with
from xformer.errors import InputError


def test_a_text_that_is_too_long_is_refused_and_not_truncated() -> None:
    assert validate_text("a" * 10, 10) == "a" * 10
    with pytest.raises(InputError, match="At most 10 characters can be read here, got 1,011; shorten the text"):
        validate_text("a" * 1011, 10)
    assert validate_text("3 \ud83d 7", 10) == "3 ? 7"


@pytest.mark.parametrize(
    ("page", "key", "most"), [(None, "input", 20_000), ("pages/compare/page.py", "compare_input", 2_000)]
)
def test_pasting_too_long_a_text_shows_one_error(open_page: Open, page: str | None, key: str, most: int) -> None:
    app = open_page(page)
    assert complaints(app) == []
    [box] = [box for box in app.text_input if str(box.key).startswith(key)]
    assert not box.proto.max_chars
    app = box.set_value("1 " * most).run()
    assert complaints(app) == [f"At most {most:,} characters can be read here, got {2 * most:,}; shorten the text."]


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
