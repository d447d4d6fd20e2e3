"""One long text is read at a time."""

from __future__ import annotations

import pytest

from pages.attention import long_text
from xformer.errors import InputError


def test_only_one_long_text_is_read_at_a_time() -> None:
    with long_text._alone(), pytest.raises(InputError, match="Another visitor's long text"), long_text._alone():
        pass
    with long_text._alone():
        pass
