"""A stack equals PyTorch's encoder, and a whole encoder-decoder equals `nn.Transformer`: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import (
    TORCH_SIZES,
    WHOLE_MODEL,
    assert_same,
    attention_by_hand,
    model_config,
    named_block,
    named_cross_block,
    named_norm,
    random,
    random_tokens,
    randomise,
    under,
)
from xformer.layers.masks import NO_MASK, Layout, Mask
from xformer.layers.stack import Block, BlockInputs, CrossBlock, Stack
from xformer.model import Transformer
from xformer.positions.sinusoidal import sinusoidal
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


def named_stack(stack: Stack) -> dict[str, torch.Tensor]:
    """Our parameters under the names of `nn.TransformerEncoder` or `nn.TransformerDecoder`."""
    names: dict[str, torch.Tensor] = {}
    for n, block in enumerate(stack.blocks):
        names |= under(f"layers.{n}", named_block(block) if isinstance(block, Block) else named_cross_block(block))
    return names if stack.norm is None else names | under("norm", named_norm(stack.norm))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_equals_pytorchs_encoder(norm: str, final_norm: bool, causal: bool) -> None:
    config = model_config(**TORCH_SIZES | {"norm": norm, "final_norm": final_norm, "positions": "none"})
    stack = randomise(Stack(config, Block, causal=causal))
    layer = nn.TransformerEncoderLayer(15, 3, 17, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    theirs = nn.TransformerEncoder(layer, 2, nn.LayerNorm(15) if final_norm else None, enable_nested_tensor=False)
    x, valid = random(2, 11, 15), torch.arange(11) < torch.tensor([[11], [7]])
    masks = {"src_key_padding_mask": ~valid}
    if causal:
        masks["mask"] = torch.ones(11, 11, dtype=torch.bool).triu(1)
    actual = stack(x, Layout.from_valid(valid), context=BlockInputs())
    expected = torch.func.functional_call(theirs, named_stack(stack), (x,), masks, strict=True)
    assert_same(actual[valid], expected[valid], [x, *stack.parameters()], WHOLE_MODEL)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer on its own inference shortcut
@pytest.mark.parametrize("tape", [None, Tape], ids=["fused", "taped"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_decoder_equals_nn_transformer(norm: str, activation: str, tape: type[Tape] | None) -> None:
    changes = {"architecture": "encoder-decoder", "norm": norm, "final_norm": True, "activation": activation}
    model = randomise(Transformer(model_config(**TORCH_SIZES | changes)))
    theirs = nn.Transformer(15, 3, 2, 2, 17, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    source, target = random_tokens(2, 19), random_tokens(2, 11, seed=1)
    valid = torch.arange(19) < torch.tensor([[19], [13]])
    actual = model(source, target, valid=valid, tape=None if tape is None else tape())

    assert model.encoder is not None
    assert model.decoder is not None
    assert model.source_embedding is not None
    assert model.unembedding.weight is not None
    names = under("encoder", named_stack(model.encoder)) | under("decoder", named_stack(model.decoder))
    memory_in = model.source_embedding.token[source] + sinusoidal(19, 15)
    target_in = model.embedding.token[target] + sinusoidal(11, 15)
    masks = {
        "tgt_mask": torch.ones(11, 11, dtype=torch.bool).triu(1),
        "src_key_padding_mask": ~valid,
        "memory_key_padding_mask": ~valid,
    }
    out = torch.func.functional_call(theirs, names, (memory_in, target_in), masks, strict=True)
    expected = out @ model.unembedding.weight.T + model.unembedding.bias
    assert_same(actual, expected, list(model.parameters()), WHOLE_MODEL)


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
