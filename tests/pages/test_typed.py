"""What is pasted into a box: too much of it is one sentence and not silence, and half a character breaks nothing."""

from __future__ import annotations

import pytest

from pages.shared.widgets import typed
from tests.pages.conftest import Open, complaints
from xformer.errors import InputError


def test_a_text_is_taken_whole_or_refused_and_never_cut() -> None:
    assert typed("a" * 10, 10) == "a" * 10
    with pytest.raises(InputError, match="Up to 10 characters are read here, got 1,011; take a part of it"):
        typed("a" * 1011, 10)
    assert typed("3 \ud83d 7", 10) == "3 ? 7"


@pytest.mark.parametrize(
    ("page", "key", "most"), [(None, "input", 20_000), ("pages/compare/page.py", "compare_input", 2_000)]
)
def test_pasting_too_much_is_one_sentence(open_page: Open, page: str | None, key: str, most: int) -> None:
    app = open_page(page)
    assert complaints(app) == []
    [box] = [box for box in app.text_input if str(box.key).startswith(key)]
    assert not box.proto.max_chars
    app = box.set_value("1 " * most).run()
    assert complaints(app) == [f"Up to {most:,} characters are read here, got {2 * most:,}; take a part of it."]
