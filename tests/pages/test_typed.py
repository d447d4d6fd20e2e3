"""Pasted text: too long a text shows an error, and a lone surrogate is replaced."""

from __future__ import annotations

import pytest

from pages.controls.widgets import validate_text
from tests.pages.conftest import Open, complaints
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
