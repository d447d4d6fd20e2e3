"""Rules allow the cells that their words say, combine, and refuse wrong values in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from tests.masks.zoo import zoo
from xformer import masks
from xformer.errors import InputError
from xformer.masks import (
    bidirectional,
    causal,
    chunked,
    dilated,
    documents,
    everywhere,
    neighbourhood,
    padding,
    prefix,
    queries,
    rows_not_empty,
    sinks,
    window,
)

CELLS: dict[str, tuple[masks.Rule, Callable[[int, int], bool]]] = {
    "causal": (causal(), lambda q, k: k <= q),
    "window": (window(3), lambda q, k: q - k in (0, 1, 2) or k > q),
    "window_ahead": (window(2, ahead=3), lambda q, k: -3 < q - k < 2),
    "documents": (documents([0, 3, 7]), lambda q, k: (q >= 3) + (q >= 7) == (k >= 3) + (k >= 7)),
    "lengths": (documents(lengths=[3, 4, 3]), lambda q, k: (q >= 3) + (q >= 7) == (k >= 3) + (k >= 7)),
    "cu_seqlens": (
        documents(cu_seqlens=torch.tensor([0, 3, 7, 10], dtype=torch.int32)),
        lambda q, k: (q >= 3) + (q >= 7) == (k >= 3) + (k >= 7),
    ),
    "ids": (documents(ids=[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]), lambda q, k: q % 2 == k % 2),
    "prefix": (prefix(4), lambda q, k: k < 4),
    "sinks": (sinks(2), lambda q, k: k < 2),
    "everywhere": (everywhere([2, 5]), lambda q, k: bool({q, k} & {2, 5})),
    "blocks": (bidirectional(within=[(2, 4), (4, 6)]), lambda q, k: q // 2 == k // 2 and q // 2 in (1, 2)),
    "full": (bidirectional(), lambda q, k: True),
    "padding": (padding([0, 0, 1, 1, 1, 1, 1, 1, 1, 0]), lambda q, k: 2 <= k < 9),
    "queries": (queries([1, 4]), lambda q, k: q in (1, 4)),
    "chunked": (chunked(3), lambda q, k: q // 3 == k // 3),
    "chunked_left_padding": (chunked(3, left_padding=2), lambda q, k: (q - 2) // 3 == (k - 2) // 3),
    "dilated": (dilated(3), lambda q, k: (q - k) % 3 == 0),
    "neighbourhood": (neighbourhood(2, 5, 1), lambda q, k: q == k),
    "and_or_not": (causal() & ~window(3) | prefix(1), lambda q, k: (q - k >= 3) or k < 1),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_rule_allows_the_cells_of_its_definition(name: str) -> None:
    rule, expected = CELLS[name]
    table = torch.tensor([[expected(q, k) for k in range(10)] for q in range(10)])
    assert torch.equal(masks.as_mask(rule, n_query=10).cells(), table)
    assert torch.equal(create_mask(rule, 1, 1, 10, 10, device="cpu")[0, 0], table)  # a rule is a mask_mod


@pytest.mark.parametrize("name", [name for name, known in zoo(64).items() if known.rule])
def test_masks_in_use_follow_their_rule(name: str) -> None:
    for n in (64, 700):
        known = zoo(n)[name]
        found = masks.check(known.function, known.rule, n_query=known.n)
        assert found.holds, found.sentence
        assert found.n_cells == known.n**2


def test_the_code_of_a_rule_makes_it_again() -> None:
    names = {name: getattr(masks, name) for name in masks.__all__}
    for rule, _ in CELLS.values():
        again = eval(rule.code, names)
        assert masks.check(rule, again, n_query=10).holds, rule.code
        assert again.text == rule.text


def test_brackets_appear_only_where_they_are_needed() -> None:
    assert str(causal() & window(4) & prefix(2)) == "causal() & window(4) & prefix(2)"
    assert str(causal() & (window(4) | sinks(2))) == "causal() & (window(4) | sinks(2))"
    assert str((causal() & window(4)) | sinks(2)) == "(causal() & window(4)) | sinks(2)"
    assert str(~(causal() | sinks(2))) == "~(causal() | sinks(2))"


def test_rules_of_inputs_of_a_batch() -> None:
    rule = causal() & padding([[1, 1, 1], [0, 1, 1]])
    mask = masks.as_mask(rule, n_query=3)
    assert mask.n_batch == 2
    assert mask.cells(0).sum() == 6
    assert mask.cells(1).tolist() == [[False, False, False], [False, True, False], [False, True, True]]
    assert masks.as_mask(causal() | prefix([1, 3]), n_query=3).cells(1).all()


def test_rules_for_other_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="is for 3 keys, but the mask has 4"):
        masks.as_mask(padding([1, 1, 1]), n_query=4)
    with pytest.raises(InputError, match=r"for 3 keys, and .* for 4"):
        _ = padding([1, 1, 1]) & documents(lengths=[2, 2])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: window(0), "at least 1, got 0"),
        (lambda: window(2.5), "at least 1, got 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: window(3, ahead=-1), "ahead"),
        (lambda: documents([5, 4, 3]), "If these are lengths, pass lengths="),
        (lambda: documents([0, 4, 4]), "increase"),
        (lambda: documents(lengths=[5, 0]), "at least 1, got 0"),
        (lambda: documents(cu_seqlens=[1, 4]), "begin with 0"),
        (lambda: documents(), "got none"),
        (lambda: documents([0], lengths=[3]), "got starts, lengths"),
        (lambda: documents(ids=[0.5]), "whole numbers"),
        (lambda: prefix(0), "leave the rule out"),
        (lambda: bidirectional(within=[(3, 3)]), "\\(first, after last\\)"),
        (lambda: bidirectional(within=[(0, 4), (3, 6)]), "do not overlap"),
        (lambda: padding([2, 0]), "got 2"),
        (lambda: padding([[[1]]]), "\\[key\\] or \\[batch, key\\]"),
        (lambda: chunked(True), "got True"),
        (lambda: neighbourhood(8, 8, 4), "must be odd"),
        (lambda: everywhere([]), "whole numbers from 0"),
        (lambda: causal() & 3, "combines with rules"),  # pyright: ignore[reportOperatorIssue]
        (lambda: ~rows_not_empty(), "can't be combined with ~"),
        (lambda: causal() | rows_not_empty(), "can't be combined with |"),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_token_types_become_ranges() -> None:
    assert masks.ranges_of(torch.tensor([1, 1, 0, 1])) == [(0, 2), (3, 4)]
    assert masks.ranges_of([0, 2, 2], kind=2) == [(1, 3)]
    assert masks.ranges_of([0, 0]) == []
