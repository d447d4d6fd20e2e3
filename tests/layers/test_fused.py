"""Attention with its gradient derived by hand equals the same equations left to autograd: values, gradients, slopes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.layers.reference import assert_same, attention_by_hand, model_config, random, randomise
from xformer.layers import fused
from xformer.layers.attention import Attention
from xformer.layers.masks import NO_MASK, Mask
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")

BATCH, N, D_MODEL, HEADS, WIDTH = 2, 11, 13, 3, 5


def mask_of(kind: str) -> Mask:
    """The mask called `kind`; "padding" and "unseeing" leave some query nothing to look at."""
    if kind == "packed":
        segment = (torch.arange(N) >= torch.tensor([[4], [7]])).long()  # [batch, pos]
        return Mask(layout=(segment[:, :, None] == segment[:, None, :])[:, None])
    if kind == "causal":
        return Mask(causal=torch.ones(N, N, dtype=torch.bool).tril(), is_plain_causal=True)
    if kind == "padding":
        valid = torch.arange(N) < torch.tensor([[N], [N - 4]])  # [batch, pos]
        return Mask(layout=(valid[:, :, None] & valid[:, None, :])[:, None], rows_may_be_empty=True)
    if kind == "unseeing":
        return Mask(causal=torch.ones(N, N, dtype=torch.bool).tril(-1), rows_may_be_empty=True)
    if kind == "by head":
        allowed = torch.rand(BATCH, HEADS, N, N, generator=torch.Generator().manual_seed(1)) < 0.5
        allowed[..., 3] = True
        return Mask(layout=allowed)
    return NO_MASK


MASKS = ("none", "packed", "causal", "padding", "unseeing", "by head")


def attention_of(bias: bool) -> Attention:
    return randomise(Attention(model_config(d_head=WIDTH, d_value=WIDTH, attention_bias=bias)))


def by_hand(attention: Attention, x: Tensor, mask: Mask) -> Tensor:
    """The function under test, called as the layer calls it."""
    return fused.self_attention(
        x,
        attention.weight_in,
        attention.bias_in,
        attention.weight_out,
        attention.bias_out,
        n_heads=HEADS,
        mask=mask.additive(x.dtype),
        empty_rows=mask.empty_rows,
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_equals_the_equation_head_by_head(kind: str, bias: bool) -> None:
    attention, x, mask = attention_of(bias), random(BATCH, N, D_MODEL), mask_of(kind)
    allowed = None if mask.allowed is None else mask.allowed.expand(BATCH, HEADS, N, N)
    expected = attention_by_hand(attention, x, x, allowed)
    assert_same(by_hand(attention, x, mask), expected, [x, *attention.parameters()])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_the_gradient_is_the_slope(kind: str, bias: bool) -> None:
    attention, x, mask = attention_of(bias), random(BATCH, N, D_MODEL), mask_of(kind)
    inputs = (x, *attention.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: by_hand(attention, x, mask), inputs, fast_mode=True)


@pytest.mark.parametrize("kind", MASKS)
def test_training_a_layer_equals_watching_it(kind: str) -> None:
    attention, x, mask = attention_of(True), random(BATCH, N, D_MODEL), mask_of(kind)
    trained = attention(x, mask=mask)
    assert "SelfAttentionBackward" in type(trained.grad_fn).__name__
    assert_same(trained, attention(x, mask=mask, tape=Tape()), [x, *attention.parameters()])


def test_it_keeps_to_what_it_can_do() -> None:
    def kind(attention: Attention, x: Tensor, **given: Tensor) -> str:
        return type(attention(x, **given).grad_fn).__name__

    equal, unequal = attention_of(True), Attention(model_config(d_head=WIDTH, d_value=7))
    short, long = random(1, fused.LONGEST, D_MODEL), random(1, fused.LONGEST + 1, D_MODEL)
    assert kind(equal, short) == "SelfAttentionBackward"
    assert kind(equal, long) != "SelfAttentionBackward"
    assert kind(unequal, short) != "SelfAttentionBackward"
    assert kind(equal, short, memory=short) != "SelfAttentionBackward"
    assert kind(equal, short, position_bias=random(1, HEADS, *[fused.LONGEST] * 2)) != "SelfAttentionBackward"
    with torch.no_grad():
        assert not fused.pays_for(short)


def test_what_does_not_learn_gets_no_gradient() -> None:
    attention, x = attention_of(True), random(BATCH, N, D_MODEL).detach()
    attention.weight_in.requires_grad_(False)
    by_hand(attention, x, NO_MASK).sum().backward()
    assert attention.weight_in.grad is None
    assert attention.weight_out.grad is not None
    assert attention.bias_in is not None
    assert attention.bias_in.grad is not None
