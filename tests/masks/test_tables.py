"""Tables of masks: cells with reasons, exact rectangles, and blocks of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masks.zoo import zoo
from xformer import masks
from xformer.errors import InputError
from xformer.masks import causal, sinks, window


def test_a_reason_says_which_parts_of_the_rule_hold() -> None:
    table = masks.cell_table(causal() & (window(2) | sinks(1)), n_query=4)
    reasons = {(row.query, row.key): (row.state, row.reason) for row in table.itertuples()}
    assert reasons[3, 1] == ("forbidden", "causal: yes · window 2: no · key among the first 1: no")
    assert reasons[3, 0] == ("allowed", "causal: yes · window 2: no · key among the first 1: yes")
    assert (masks.cell_table(torch.ones(2, 2).bool())["reason"] == "").all()


@pytest.mark.parametrize("name", ["document", "sliding_window", "natten", "transfusion", "random_blocks"])
def test_rectangles_cover_exactly_the_allowed_cells(name: str) -> None:
    known = zoo(90)[name]
    cells = masks.as_mask(known.function, n_query=known.n).cells().numpy()
    drawn = np.zeros_like(cells, dtype=int)
    for row in masks.run_table(known.function, n_query=known.n).itertuples():
        assert row.state == "allowed"
        drawn[row.query : row.query_stop, row.key : row.key_stop] += 1
    assert (drawn == cells).all()


def test_a_part_has_the_positions_of_the_whole() -> None:
    part = masks.run_table(causal(), n_query=100, queries=(40, 42), keys=(30, 60))
    assert part[["query", "query_stop", "key", "key_stop"]].to_numpy().tolist() == [[40, 41, 30, 41], [41, 42, 30, 42]]
    assert masks.cell_table(causal(), n_query=100, queries=(40, 42), keys=(41, 42))["state"].tolist() == [
        "forbidden",
        "allowed",
    ]


def test_blocks_count_wrong_cells_of_a_large_mask() -> None:
    found = masks.check(lambda b, h, q, k: (q >= k) ^ ((q == 9000) & (k == 300)), causal(), n_query=10_000)
    table = masks.block_table(found, block=512)
    wrong = table[table["allowed_but_forbidden"] + table["forbidden_but_allowed"] > 0]
    assert wrong[["query", "key", "forbidden_but_allowed"]].to_numpy().tolist() == [[8704, 0, 1]]
    assert table["allowed"].sum() == 10_000 * 10_001 // 2 - 1
    assert table["cells"].sum() == 10_000**2


def test_too_many_cells_are_refused() -> None:
    with pytest.raises(InputError, match="select some"):
        masks.run_table(causal(), n_query=5000)
