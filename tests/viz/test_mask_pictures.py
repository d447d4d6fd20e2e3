"""Pictures of masks: cells, exact rectangles or blocks, with wrong cells marked, in both themes."""

from __future__ import annotations

import pytest
import torch

from tests.viz.drawn_file import all_rows, rows_of, spec_of
from xformer import masks, viz
from xformer.errors import InputError
from xformer.masks import causal, dilated, documents, window
from xformer.viz.export import svg
from xformer.viz.theme import BROKEN, MASKED, PRIMARY, pick


def test_few_positions_are_drawn_as_cells_with_tokens_and_reasons() -> None:
    rows = rows_of(viz.mask(causal() & window(2), tokens=["a", "b", "a"], n_query=3), "query_name")
    assert [(one["query_name"], one["key_name"], one["state"]) for one in rows][3:5] == [
        ("1 · b", "0 · a", "allowed"),
        ("1 · b", "1 · b", "allowed"),
    ]
    assert rows[6]["state"] == "forbidden"
    assert rows[6]["reason"] == "causal: yes · window 2: no"


def test_wrong_cells_have_their_own_colours() -> None:
    cells = torch.ones(5, 5).tril().bool()
    cells[1, 3], cells[4, 0] = True, False
    chart = viz.mask(masks.check(cells, causal()))
    states = {(one["query"], one["key"]): one["state"] for one in rows_of(chart, "query_name")}
    assert states[1, 3] == "allowed, but the rule forbids it"
    assert states[4, 0] == "forbidden, but the rule allows it"
    scale = spec_of(chart)["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True))["allowed, but the rule forbids it"] == BROKEN
    right = spec_of(viz.mask(masks.check(cells, cells)))["encoding"]["color"]["scale"]
    assert right["domain"] == ["forbidden", "allowed"]


def test_many_positions_are_drawn_as_exact_rectangles() -> None:
    rows = rows_of(viz.mask(documents([0, 500, 800]), n_query=1000), "query_stop")
    assert [(one["query"], one["query_stop"], one["state"]) for one in rows] == [
        (0, 1000, "forbidden"),
        (0, 500, "allowed"),
        (500, 800, "allowed"),
        (800, 1000, "allowed"),
    ]


def test_masks_without_structure_and_long_ones_are_drawn_by_blocks() -> None:
    fine = rows_of(viz.mask(dilated(2), n_query=1000), "share")
    assert {one["state"] for one in fine} == {"partial"}
    rows = rows_of(viz.mask(causal(), n_query=32_768), "share")
    assert len(rows) == 64**2
    assert {one["state"] for one in rows} == {"empty", "partial", "full"}
    assert sum(one["allowed"] for one in rows) == 32_768 * 32_769 // 2
    near = rows_of(viz.mask(causal(), n_query=32_768, queries=(20_000, 20_010), keys=(19_990, 20_020)), "query_name")
    assert len(near) == 300


def test_a_block_with_a_wrong_cell_is_marked() -> None:
    found = masks.check(lambda b, h, q, k: (q >= k) ^ ((q == 7000) & (k == 20)), causal(), n_query=8000)
    wrong = [one for one in rows_of(viz.mask(found), "share") if one["state"] == "a cell breaks the rule"]
    assert [(one["query"], one["key"], one["forbidden_but_allowed"]) for one in wrong] == [(6912, 0, 1)]


def test_groups_are_bands_on_both_sides() -> None:
    chart = viz.mask(causal(), n_query=6, groups=["one"] * 4 + ["two"] * 2)
    bands = [one for one in all_rows(chart) if "group" in one]
    assert {(one["first"], one["stop"], one["group"]) for one in bands} == {(0, 4, "one"), (4, 6, "two")}
    assert len(spec_of(chart)["concat"]) == 3
    with pytest.raises(InputError, match="one entry for each of the 6 keys, got 2"):
        viz.mask(causal(), n_query=6, groups=["one", "two"])


def test_a_drawn_mask_has_marks_in_the_colours_of_both_themes() -> None:
    spec = spec_of(viz.mask(causal(), n_query=70))
    assert svg([spec]).count(PRIMARY) >= 70
    dark = svg([viz.themed(spec, dark=True)])
    assert pick(PRIMARY, True) in dark
    assert pick(MASKED, True) in dark
