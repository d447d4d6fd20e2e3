"""A layer equals PyTorch's encoder and decoder layers, pre-norm and post-norm: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import (
    TORCH_SIZES,
    assert_same,
    attention_by_hand,
    model_config,
    named_block,
    named_cross_block,
    random,
    randomise,
)
from xformer.layers.block import Block, BlockInputs, CrossBlock
from xformer.layers.masks import NO_MASK, Mask
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")

QUERY, SOURCE = 11, 19
PATHS = {"fused": lambda: SILENT, "taped": Tape}
CAUSAL = Mask(causal=torch.ones(QUERY, QUERY, dtype=torch.bool).tril(), is_plain_causal=True)
THEIRS = {"d_model": 15, "nhead": 3, "dim_feedforward": 17, "dropout": 0.0, "batch_first": True}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [True, False])
def test_block_equals_an_encoder_layer(path: str, norm: str, activation: str, causal: bool) -> None:
    block = randomise(Block(model_config(**TORCH_SIZES | {"norm": norm, "activation": activation, "norm_eps": 1e-3})))
    theirs = nn.TransformerEncoderLayer(**THEIRS, activation=activation, norm_first=norm == "pre", layer_norm_eps=1e-3)
    x = random(2, QUERY, 15)
    actual = block(x, BlockInputs(mask=CAUSAL if causal else NO_MASK), PATHS[path]())
    masks = {"src_mask": ~CAUSAL.causal} if causal and CAUSAL.causal is not None else {}
    expected = torch.func.functional_call(theirs, named_block(block), (x,), masks, strict=True)
    assert_same(actual, expected, [x, *block.parameters()])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_cross_block_equals_a_decoder_layer(path: str, norm: str, activation: str) -> None:
    changes = {"architecture": "encoder-decoder", "norm": norm, "activation": activation}
    block = randomise(CrossBlock(model_config(**TORCH_SIZES | changes)))
    theirs = nn.TransformerDecoderLayer(**THEIRS, activation=activation, norm_first=norm == "pre")
    x, memory = random(2, QUERY, 15), random(2, SOURCE, 15, seed=1)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [13]])  # [batch, key]
    cross_mask = Mask(layout=valid[:, None, None, :], is_ordered=False)
    actual = block(x, BlockInputs(mask=CAUSAL, memory=memory, cross_mask=cross_mask), PATHS[path]())
    assert CAUSAL.causal is not None
    masks = {"tgt_mask": ~CAUSAL.causal, "memory_key_padding_mask": ~valid}
    expected = torch.func.functional_call(theirs, named_cross_block(block), (x, memory), masks, strict=True)
    assert_same(actual, expected, [x, memory, *block.parameters()])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("d_ff", [17, 0])
def test_without_norms_a_layer_only_adds(path: str, d_ff: int) -> None:
    block = randomise(Block(model_config(norm="none", d_ff=d_ff)))
    x = random(2, QUERY, 13)
    expected = x + attention_by_hand(block.attn, x, x)
    if d_ff:
        assert block.ffn is not None
        assert block.ffn.bias_in is not None
        hidden = (expected @ block.ffn.weight_in.T + block.ffn.bias_in).clamp(min=0)
        expected = expected + hidden @ block.ffn.weight_out.T + block.ffn.bias_out
    assert_same(block(x, BlockInputs(), PATHS[path]()), expected, [x, *block.parameters()])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_attention_alone_keeps_one_norm(norm: str) -> None:
    block = randomise(Block(model_config(norm=norm, d_ff=0)))
    x, gain = random(2, QUERY, 13), block.attn_residual.norm
    if norm == "pre":
        expected = x + attention_by_hand(block.attn, gain(x), gain(x))
    else:
        expected = gain(x + attention_by_hand(block.attn, x, x))
    assert_same(block(x, BlockInputs()), expected, [x, *block.parameters()])
