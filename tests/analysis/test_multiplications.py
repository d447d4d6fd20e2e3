"""Multiplications counted from shapes against those that torch counts as it multiplies."""

from __future__ import annotations

import pytest

from xformer.analysis.principles import attention_costs


@pytest.mark.parametrize(("n", "d", "h"), [(5, 4, 2), (7, 12, 3), (64, 512, 8)])
def test_multiplications_from_shapes_are_those_that_torch_counts(n: int, d: int, h: int) -> None:
    frame = attention_costs(n_tokens=n, d_model=d, n_heads=h)
    sums = frame.groupby("heads", sort=False)["count"].sum()
    assert sums.tolist() == frame.drop_duplicates("heads")["measured"].tolist()
    assert sums["one head of d"] == sums["h heads of d/h"] == 4 * n * d * d + 2 * n * n * d
    assert sums["h heads of d"] == h * sums["one head of d"]
