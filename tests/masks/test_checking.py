"""A check finds each planted fault, with its first cell and the number of cells in each direction."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.masks.zoo import zoo
from xformer import masks
from xformer.errors import InputError
from xformer.masks import Rule, causal, chunked, documents, padding, prefix, rows_not_empty, sinks, window
from xformer.testing import assert_mask

N = 150
RULES: dict[str, Rule] = {
    "causal": causal(),
    "window": causal() & window(20),
    "documents": causal() & documents([0, 30, 90, 131]),
    "prefix": causal() | prefix(40),
    "left_padding": causal() & padding(torch.arange(N) >= 12),
    "chunks": causal() & chunked(16),
    "images": causal() | masks.bidirectional(within=[(20, 50), (100, 140)]),
    "sinks": causal() & (window(16) | sinks(4)),
}


def _cell(q: int, k: int) -> Tensor:
    made = torch.zeros(N, N, dtype=torch.bool)
    made[q, k] = True
    return made


OFF_BY_ONE = {
    "strict": lambda q, k: q > k,
    "one_later": lambda q, k: q + 1 >= k,
    "inverted": lambda q, k: q < k,
    "transposed": lambda q, k: q <= k,
    "full": lambda q, k: (q >= 0) | (k >= 0),
    "upper_left_of_more_keys": lambda q, k: q >= k + 3,
    "window_19": lambda q, k: (q >= k) & (q - k < 19),
    "window_21": lambda q, k: (q >= k) & (q - k <= 20),
    "window_without_causal": lambda q, k: q - k < 20,
    "window_at_start_only": lambda q, k: (q >= k) & (q < 20),
}


def _faults() -> list[tuple[str, str, Tensor]]:
    """Return forty wrong masks: the rule's name, the fault, and the cells."""
    q, k = torch.arange(N)[:, None], torch.arange(N)[None]
    right = {name: masks.as_mask(rule, n_query=N).cells() for name, rule in RULES.items()}
    faults: list[tuple[str, str, Tensor]] = []
    for name, cells in right.items():
        inside = cells.nonzero()[len(cells.nonzero()) // 2].tolist()
        outside = (~cells).nonzero()[len((~cells).nonzero()) // 3].tolist()
        faults.append((name, "a cell lost", cells & ~_cell(inside[0], inside[1])))
        faults.append((name, "a cell leaked", cells | _cell(outside[0], outside[1])))
        faults.append((name, "the last corner flipped", cells ^ _cell(N - 1, N - 1)))
    faults += [("causal", name, OFF_BY_ONE[name](q, k)) for name in list(OFF_BY_ONE)[:6]]
    faults += [("window", name, OFF_BY_ONE[name](q, k)) for name in list(OFF_BY_ONE)[6:]]
    faults += [
        ("documents", "a boundary one later", masks.as_mask(causal() & documents([0, 30, 91, 131]), n_query=N).cells()),
        ("documents", "no documents", right["causal"]),
        ("left_padding", "on queries", right["causal"] & (q >= 12) & (k >= 0)),
        ("left_padding", "inverted", right["causal"] & (k < 12)),
        ("left_padding", "missing", right["causal"]),
        ("images", "one image", masks.as_mask(causal() | masks.bidirectional(within=[(20, 140)]), n_query=N).cells()),
    ]
    return faults


FAULTS = _faults()


def test_there_are_forty_faults() -> None:
    assert len(FAULTS) == 40


@pytest.mark.parametrize(("name", "fault", "cells"), FAULTS, ids=[f"{name}: {fault}" for name, fault, _ in FAULTS])
def test_a_planted_fault_is_found_with_its_cell(name: str, fault: str, cells: Tensor) -> None:
    expected = masks.as_mask(RULES[name], n_query=N).cells()
    found = masks.check(cells, RULES[name])
    wrong = (cells != expected).nonzero()
    assert not found.holds
    assert found.first == (0, 0, *wrong[0].tolist())
    assert (found.n_leaks, found.n_losses) == (int((cells & ~expected).sum()), int((expected & ~cells).sum()))
    for cell, part in ((found.first_leak, cells & ~expected), (found.first_loss, expected & ~cells)):
        assert cell == ((0, 0, *part.nonzero()[0].tolist()) if part.any() else None)
    assert f"query {wrong[0][0]}, key {wrong[0][1]}" in found.sentence


def test_cells_are_listed_in_order_in_both_directions() -> None:
    cells = torch.ones(6, 6).tril().bool()
    cells[1, 4], cells[3, 0], cells[2, 5] = True, False, True
    table = masks.check(cells, causal()).table
    assert table[["query", "key", "direction"]].to_numpy().tolist() == [
        [1, 4, "allowed_but_forbidden"],
        [2, 5, "allowed_but_forbidden"],
        [3, 0, "forbidden_but_allowed"],
    ]


def test_the_first_cell_is_in_the_first_row_whatever_its_block() -> None:
    cells = torch.ones(300, 300).tril().bool()
    cells[200, 3], cells[140, 250], cells[150, 20] = False, True, False
    found = masks.check(cells, causal())
    assert found.first == (0, 0, 140, 250)
    assert found.first_loss == (0, 0, 150, 20)
    cells[260, 10] = cells[259, 150] = False
    assert masks.check(cells, causal()).table["query"].tolist() == [140, 150, 200, 259, 260]


@pytest.mark.parametrize("seed", range(6))
def test_a_few_random_cells_of_a_large_function_are_found(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = 4000
    bad = torch.randint(0, n, (2,), generator=generator).tolist()

    def broken(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q >= k) & (q - k < 300)) ^ ((q == bad[0]) & (k == bad[1]))

    found = masks.check(broken, causal() & window(300), n_query=n)
    assert (found.first, found.n_differing, found.n_cells) == ((0, 0, *bad), 1, n * n)


def test_a_leak_is_named_with_its_input_and_head() -> None:
    cells = torch.ones(2, 3, 8, 8).tril().bool()
    cells[1, 2, 4, 6] = True
    found = masks.check(cells, causal())
    assert found.first == (1, 2, 4, 6)
    assert found.sentence == (
        "The mask is not causal: 1 cell is allowed, but the rule forbids it, first query 4, key 6 of input 1 in head 2."
    )


def test_rows_of_padding_can_be_skipped() -> None:
    valid = torch.tensor([[0, 0, 1, 1, 1]]).bool()
    cells = torch.ones(5, 5).tril().bool()[None, None] & valid[:, None, None]
    filled = cells | ~valid[:, None, :, None]  # some code lets rows of padding see everything
    assert not masks.check(filled, causal() & padding(valid)).holds
    found = masks.check(filled, causal() & padding(valid), queries=valid)
    assert found.holds
    assert found.n_cells == 15
    filled[0, 0, 3, 1] = True
    assert masks.check(filled, causal() & padding(valid), queries=valid).first == (0, 0, 3, 1)


def test_empty_rows_are_found_if_they_are_ruled_out() -> None:
    rule = causal() & padding([0, 0, 1, 1])
    assert masks.check(rule, rule, n_query=4).holds
    found = masks.check(rule, rule & rows_not_empty(), n_query=4)
    assert (found.n_empty_rows, found.n_differing, found.empty_rows) == (2, 0, ((0, 0, 0), (0, 0, 1)))
    assert found.sentence.endswith("2 queries have no allowed key, first query 0.")
    assert masks.check(causal(), causal() & rows_not_empty(), n_query=300).holds


def test_all_cells_wrong_are_counted_in_whole_blocks() -> None:
    found = masks.check(~causal(), causal(), n_query=1000)
    assert found.n_differing == 1000**2
    assert len(found.table) == 2000
    assert found.first == (0, 0, 0, 0)


def test_a_mask_of_other_size_is_refused() -> None:
    with pytest.raises(InputError, match="3 × 3 cells, and the rule 4 × 4"):
        masks.check(torch.ones(3, 3).bool(), torch.ones(4, 4).bool())
    with pytest.raises(InputError, match="2 inputs, and the rule for 3"):
        masks.check(torch.ones(2, 1, 3, 3).bool(), padding([[1, 1, 1]] * 3))


def test_the_assertion_for_test_suites() -> None:
    known = zoo(64)["sliding_window"]
    assert_mask(known.function, known.rule, n_query=known.n)
    with pytest.raises(AssertionError, match="first query 8, key 0"):
        assert_mask(known.function, causal() & window(8), n_query=known.n)
