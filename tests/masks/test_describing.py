"""Descriptions are exact: a rule is named only if it makes the mask, and the nearest one is given otherwise."""

from __future__ import annotations

import pytest
import torch

from tests.masks.zoo import zoo
from xformer import masks
from xformer.errors import InputError
from xformer.masks import causal, documents, padding, queries, window


@pytest.mark.parametrize("name", zoo(64))
def test_masks_in_use_are_described(name: str) -> None:
    known = zoo(64)[name]
    found = masks.describe(known.function, n_query=known.n)
    if known.rule is None:
        assert found.rule is None
        assert found.sentence.startswith("no rule of ours makes this mask; nearest: ")
        return
    assert found.rule is not None, found.sentence
    assert masks.check(known.rule, found.rule, n_query=known.n).holds
    if known.text:
        assert found.sentence == known.text


def test_a_mask_with_several_rules_and_an_empty_row() -> None:
    rule = causal() & window(4) & documents([0, 5, 9]) & ~queries([7])
    found = masks.describe(rule, n_query=14)
    assert found.sentence == "causal, window 4, 3 documents at 0, 5, 9; row 7 is empty"
    assert found.rule is not None
    assert masks.check(rule, found.rule, n_query=14).holds


@pytest.mark.parametrize(
    "text", ["full,window:3,padding:0.1", "full,padding:3", "full,window:2,documents:3.6", "full,window:2,padding:5"]
)
def test_masks_that_are_not_causal(text: str) -> None:
    recipe = masks.MaskRecipe.parse(text)
    found = masks.describe(recipe.rule(9), n_query=9)
    assert found.rule is not None, found.sentence
    assert masks.check(recipe.rule(9), found.rule, n_query=9).holds


def test_every_recipe_is_described_exactly_or_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    described = 0
    for _ in range(150):
        n = int(torch.randint(1, 14, (), generator=generator))
        w, s, p = (int(one) for one in torch.randint(0, 4, (3,), generator=generator))
        marks = [tuple((torch.rand(n, generator=generator) < 0.2).nonzero()[:, 0].tolist()) for _ in range(3)]
        recipe = masks.MaskRecipe(bool(torch.rand((), generator=generator) < 0.6), w, s if w else 0, p, *marks)
        cells = masks.as_mask(recipe.rule(n), n_query=n).cells()
        found = masks.describe(cells)
        described += found.rule is not None
        if found.rule is not None:
            assert masks.check(cells, found.rule).holds, recipe.text
    assert described >= 75


@pytest.mark.parametrize("rule", [causal(), causal() & window(4), causal() & window(4) & padding([0, 0] + [1] * 10)])
def test_the_nearest_rule_is_given_with_the_first_cell(rule: masks.Rule) -> None:
    cells = masks.as_mask(rule, n_query=12).cells()
    cells[3, 7] = cells[11, 3] = True
    cells[9, 8] = False
    found = masks.describe(cells)
    wrong = masks.check(cells, rule)
    assert found.rule is None
    assert found.groups[0].nearest.n_differing == wrong.n_differing
    assert f"{wrong.n_differing} cells differ, first (3, 7)" in found.sentence


def test_a_description_never_names_a_rule_that_does_not_hold() -> None:
    generator = torch.Generator().manual_seed(0)
    for name, known in zoo(36).items():
        cells = masks.as_mask(known.function, n_query=known.n).cells()
        q, k = torch.randint(0, known.n, (2,), generator=generator).tolist()
        cells[q, k] = ~cells[q, k]
        found = masks.describe(cells)
        if found.rule is not None:
            assert masks.check(cells, found.rule).holds, name
        else:
            assert not found.groups[0].nearest.holds


def test_inputs_that_differ_are_described_one_by_one() -> None:
    rule = causal() & padding([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    found = masks.describe(rule, n_query=4)
    assert found.sentence == "Inputs 0, 2: causal. Input 1: causal, key 0 is padding; row 0 is empty."
    assert found.rule is None
    heads = masks.describe(torch.stack([torch.ones(4, 4).tril(), torch.ones(4, 4)])[None].bool())
    assert heads.sentence == "Head 0: causal. Head 1: full."


def test_an_empty_mask() -> None:
    assert masks.describe(torch.zeros(4, 4).bool()).sentence == "every cell is forbidden"


def test_queries_after_a_cache() -> None:
    cells = torch.ones(6, 6).tril().bool()[4:]
    assert masks.describe(cells, first_query=4).sentence == "causal"
    with pytest.raises(InputError, match="first_query= must say"):
        masks.describe(cells)


def test_large_masks_are_refused() -> None:
    with pytest.raises(InputError, match="up to 4,096 positions"):
        masks.describe(causal(), n_query=5000)
