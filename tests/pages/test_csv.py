"""What a screen offers as a file counts as the screen does, and says so."""

from __future__ import annotations

import pandas as pd
import pytest

from pages.shared.notebook import HEAD, heads_from_1


@pytest.mark.parametrize(
    ("first", "heads", "written"), [(0, [0, 3, -1], [1, 4, "mean"]), (1, [1, 4, 0], [1, 4, "mean"])]
)
def test_heads_are_counted_from_1_and_the_header_says_so(first: int, heads: list[int], written: list[object]) -> None:
    table = heads_from_1(pd.DataFrame({"layer": "a", "head": heads}), first, no_head="mean")
    assert list(table.columns) == ["layer", HEAD]
    assert table[HEAD].tolist() == written
