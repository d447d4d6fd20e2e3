"""Pooling of patterns and maps whose numbers can be computed by hand."""

from __future__ import annotations

import numpy as np
import torch

from xformer.pooling import max_pool_masked, pool_keys, pool_pattern


def test_pooled_rows_sum_to_one() -> None:
    pattern = torch.rand(3, 10, 7).softmax(dim=-1)
    small = pool_pattern(pattern, 4)  # blocks of 3 queries and 2 keys
    assert small.shape == (3, 4, 4)
    assert torch.allclose(small.sum(dim=-1), torch.ones(3, 4))
    assert torch.allclose(small[1, 2, 1], pattern[1, 6:9, 2:4].sum() / 3)
    assert torch.allclose(small[:, 3, 3], pattern[:, 9, 6])
    assert pool_pattern(pattern, 10) is pattern is pool_keys(pattern, None)


def test_maps_are_max_pooled() -> None:
    weights = np.zeros((1, 6, 6))
    weights[0, 3, 4], weights[0, :2, :2], weights[0, 5, 0] = 0.8, np.nan, np.inf
    np.testing.assert_equal(max_pool_masked(weights, 3)[0], [[np.nan, 0, 0], [0, 0, 0.8], [np.inf, 0, 0]])
