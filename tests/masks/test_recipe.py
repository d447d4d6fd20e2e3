"""Recipes: their link, their rule, and code for three libraries that makes exactly this mask."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from xformer import masks
from xformer.errors import InputError
from xformer.masks import MaskRecipe
from xformer.masks.recipe import LIBRARIES

N = 12
RECIPES = [
    MaskRecipe(is_causal, w, s, p, d, b, v)
    for is_causal, w, s, p, d, b, v in itertools.product(
        (True, False), (0, 3), (0, 1), (0, 4), ((), (5, 9)), ((), (2, 3, 7, 8)), ((), (0, 1))
    )
]


def _expected(recipe: MaskRecipe, q: int, k: int) -> bool:
    """Return a cell, computed by hand."""
    near = not recipe.window or (q - k if recipe.causal else abs(q - k)) < recipe.window
    allowed = (k <= q or not recipe.causal) and (near or k < recipe.sinks)
    allowed = allowed or k < recipe.prefix
    allowed = allowed or any({q, k} <= set(block) for block in ((2, 3), (7, 8)) if recipe.blocks)
    same = (q >= 5) + (q >= 9) == (k >= 5) + (k >= 9) or not recipe.documents
    return allowed and same and k not in recipe.padding


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: one.text)
def test_a_recipe_its_link_and_its_code_make_the_same_mask(recipe: MaskRecipe) -> None:
    expected = torch.tensor([[_expected(recipe, q, k) for k in range(N)] for q in range(N)])
    assert torch.equal(masks.as_mask(recipe.rule(N), n_query=N).cells(), expected)
    assert MaskRecipe.parse(recipe.text) == recipe
    for library in LIBRARIES:
        made: dict[str, Any] = {}
        exec(recipe.code(library, N), made)
        if library == "flex_attention":
            found = masks.as_mask(made["block_mask"]).cells()
            assert masks.check(made["mask_mod"], expected, n_query=N).holds
        else:
            found = made["allowed"] if library == "torch" else made["mask"][0, 0]
        assert torch.equal(found, expected), library


def test_the_code_of_torch_runs_in_its_kernel() -> None:
    made: dict[str, Any] = {}
    exec(MaskRecipe(window=2).code("torch", 4), made)
    q = torch.randn(1, 1, 4, 8)
    out = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=made["allowed"])
    assert out.shape == (1, 1, 4, 8)


def test_positions_that_an_input_does_not_have_are_left_out() -> None:
    recipe = MaskRecipe(window=9, documents=(2, 7), padding=(8,)).fitting(4)
    assert recipe == MaskRecipe(window=4, documents=(2,))


@pytest.mark.parametrize(
    "text", ["window", "window:x", "window:1.2", "documents:", "causal,causel", "window:-1", "sinks:1,sinks:2"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="A mask is written as"):
        MaskRecipe.parse(text)
