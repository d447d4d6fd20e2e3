"""A large pattern made small: rows still sum to 1, a small one is left alone, and one is worked out by hand."""

from __future__ import annotations

import torch

from xformer.analysis.attention_patterns import any_allowed, blocks, pooled, pooled_keys


def test_blocks_hold_every_position_once() -> None:
    for n, most in ((1, 4), (4, 4), (5, 4), (510, 32), (7, None)):
        found = blocks(n, most)
        assert [at for first, last in found for at in range(first, last + 1)] == list(range(n))
        assert len(found) <= (most or n)


def test_rows_still_sum_to_one_and_one_block_by_hand() -> None:
    pattern = torch.rand(3, 10, 7).softmax(dim=-1)
    small = pooled(pattern, 4)  # blocks of 3 queries and 2 keys
    assert small.shape == (3, 4, 4)
    assert torch.allclose(small.sum(dim=-1), torch.ones(3, 4))
    assert torch.allclose(small[1, 2, 1], pattern[1, 6:9, 2:4].sum() / 3)
    assert torch.allclose(small[:, 3, 3], pattern[:, 9, 6])


def test_what_is_small_enough_is_left_alone() -> None:
    pattern = torch.rand(5, 5)
    assert pooled(pattern, 5) is pattern
    assert pooled_keys(pattern, None) is pattern


def test_a_block_is_masked_where_all_of_it_is() -> None:
    assert any_allowed(torch.tensor([False, False, True, False, False]), 3).tolist() == [False, True, False]
