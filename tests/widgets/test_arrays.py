"""Anybody's attention patterns in the attention view: every form that libraries return, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from xformer.errors import InputError
from xformer.widgets.arrays import layers_of

BATCH, LAYERS, HEADS, N = 2, 3, 5, 7


def rows(*shape: int, causal: bool = False) -> torch.Tensor:
    """Random patterns whose rows sum to 1."""
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    if causal:
        scores = scores.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(dim=-1)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda whole: tuple(whole), id="a tuple of [batch, head, query, key], as a model returns them"),
        pytest.param(lambda whole: whole, id="one tensor"),
        pytest.param(lambda whole: [one[0] for one in whole], id="a list without a batch"),
        pytest.param(lambda whole: whole.numpy(), id="an array"),
        pytest.param(lambda whole: [one.requires_grad_() for one in whole.clone()], id="in training"),
        pytest.param(lambda whole: whole.double(), id="in double precision"),
        pytest.param(lambda whole: whole.numpy().tolist(), id="lists"),
    ],
)
def test_every_form_is_the_same_picture(form: Any) -> None:
    whole = rows(LAYERS, BATCH, HEADS, N, N)
    found = layers_of(form(whole))
    assert [layer.title for layer in found] == ["layer 1", "layer 2", "layer 3"]
    for layer, expected in zip(found, whole, strict=True):
        np.testing.assert_array_equal(layer.pattern, expected[0].numpy())
        assert layer.query_labels == tuple("0123456")
        assert not layer.is_masked


def test_one_layer_alone() -> None:
    [layer] = layers_of(rows(HEADS, N, N))
    assert layer.shape == (HEADS, N, N)


def test_half_precision_is_read_as_it_is() -> None:
    whole = rows(1, 1, HEADS, N, N).bfloat16()
    np.testing.assert_array_equal(layers_of(whole)[0].pattern, whole[0, 0].float().numpy())


def test_a_causal_mask_is_recognised_and_one_weight_above_the_diagonal_is_none() -> None:
    pattern = rows(1, HEADS, N, N, causal=True)
    np.testing.assert_array_equal(layers_of([pattern])[0].allowed, np.tri(N, dtype=bool)[None])
    pattern[0, 4, 0, 1] = 1e-6
    assert not layers_of([pattern])[0].is_masked


def test_cross_attention_has_tokens_of_its_own() -> None:
    [layer] = layers_of([rows(1, HEADS, 2, 3)], ["a", "b"], ["x", "y", "z"])
    assert (layer.query_labels, layer.key_labels) == (("a", "b"), ("x", "y", "z"))


@pytest.mark.parametrize(
    ("attentions", "tokens", "sentence"),
    [
        ([], None, "There is no attention to draw: got no layers"),
        ([None, None], None, "One of the layers is None: the model was run without its attention"),
        ([torch.ones(3, 3)], None, r"layer 1 has the shape \[3, 3\]"),
        ([torch.ones(0, HEADS, 3, 3)], None, r"layer 1 has the shape \[0, 5, 3, 3\]"),
        ([torch.ones(1, 0, 3, 3)], None, r"layer 1 has the shape \[1, 0, 3, 3\]"),
        ([torch.ones(1, 1, 3, 3)], ["a", "b"], "Layer 1 has 3 queries, but 2 tokens were given"),
        (["what"], None, "Attention is given as arrays of numbers, got str"),
    ],
)
def test_what_does_not_fit_is_one_sentence(attentions: Any, tokens: list[str] | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        layers_of(attentions, tokens, tokens)
