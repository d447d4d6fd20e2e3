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
from xformer.layers.masks import SequencePacking
from xformer.layers.stack import Block, BlockInputs, Stack
from xformer.model import Transformer
from xformer.positions.sinusoidal import sinusoidal
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


QUERY = 11
PATHS = {"fused": lambda: SILENT, "taped": Tape}
CAUSAL = torch.ones(QUERY, QUERY, dtype=torch.bool).tril()


def named_stack(stack: Stack) -> dict[str, torch.Tensor]:
    """Return our parameters under the names of `nn.TransformerEncoder` or `nn.TransformerDecoder`."""
    names: dict[str, torch.Tensor] = {}
    for n, block in enumerate(stack.blocks):
        names |= under(f"layers.{n}", named_block(block) if isinstance(block, Block) else named_cross_block(block))
    return names if stack.norm is None else names | under("norm", named_norm(stack.norm))


@pytest.mark.parametrize(("path", "causal"), [("fused", True), ("taped", False)])
@pytest.mark.parametrize(
    ("norm", "final_norm", "activation"),
    [("pre", True, "relu"), ("post", False, "gelu"), ("post", True, "relu"), ("pre", False, "gelu")],
)
def test_a_stack_equals_pytorchs_encoder(norm: str, final_norm: bool, activation: str, causal: bool, path: str) -> None:
    sizes = {"norm": norm, "final_norm": final_norm, "activation": activation, "norm_eps": 1e-3, "positions": "none"}
    stack = randomise(Stack(model_config(**TORCH_SIZES | sizes), Block, causal=causal))
    layer = nn.TransformerEncoderLayer(
        15, 3, 17, 0.0, activation, batch_first=True, norm_first=norm == "pre", layer_norm_eps=1e-3
    )
    last = nn.LayerNorm(15, eps=1e-3) if final_norm else None
    theirs = nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)
    x, valid = random(2, QUERY, 15), torch.arange(QUERY) < torch.tensor([[QUERY], [7]])
    masks = {"src_key_padding_mask": ~valid} | ({"mask": ~CAUSAL} if causal else {})
    actual = stack(x, SequencePacking.from_valid(valid), context=BlockInputs(), layer_tape=PATHS[path]())
    expected = torch.func.functional_call(theirs, named_stack(stack), (x,), masks, strict=True)
    assert_same(actual[valid], expected[valid], [x, *stack.parameters()], WHOLE_MODEL)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer's warning about its fast path
@pytest.mark.parametrize("tape", [None, Tape], ids=["fused", "taped"])
@pytest.mark.parametrize(("norm", "activation"), [("pre", "relu"), ("post", "gelu")])
def test_an_encoder_decoder_equals_nn_transformer(norm: str, activation: str, tape: type[Tape] | None) -> None:
    changes = {"architecture": "encoder-decoder", "norm": norm, "final_norm": True, "activation": activation}
    model = randomise(Transformer(model_config(**TORCH_SIZES | changes)))
    theirs = nn.Transformer(15, 3, 2, 2, 17, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    source, target = random_tokens(2, 19), random_tokens(2, 11, seed=1)
    valid = torch.arange(19) < torch.tensor([[19], [13]])
    actual = model(source, target, valid=valid, tape=None if tape is None else tape())

    names = under("encoder", named_stack(model.encoder)) | under("decoder", named_stack(model.decoder))
    memory_in = model.source_embedding.token[source] + sinusoidal(19, 15)
    target_in = model.embedding.token[target] + sinusoidal(11, 15)
    masks = {"tgt_mask": ~CAUSAL, "src_key_padding_mask": ~valid, "memory_key_padding_mask": ~valid}
    out = torch.func.functional_call(theirs, names, (memory_in, target_in), masks, strict=True)
    expected = out @ model.unembedding.weight.T + model.unembedding.bias
    assert_same(actual, expected, list(model.parameters()), WHOLE_MODEL)


@pytest.mark.parametrize(
    ("norm", "d_ff", "path"),
    [("none", 17, "fused"), ("none", 17, "taped"), ("none", 0, "taped"), ("pre", 0, "fused"), ("post", 0, "fused")],
)
def test_layers_without_norms_or_feed_forward(norm: str, d_ff: int, path: str) -> None:
    block = randomise(Block(model_config(norm=norm, d_ff=d_ff)))
    x = random(2, QUERY, 13)
    before = block.attn_residual.norm(x) if norm == "pre" else x
    expected = x + attention_by_hand(block.attn, before, before)
    if norm == "post":
        expected = block.attn_residual.norm(expected)
    if d_ff:
        hidden = (expected @ block.ffn.weight_in.T + block.ffn.bias_in).clamp(min=0)
        expected = expected + hidden @ block.ffn.weight_out.T + block.ffn.bias_out
    assert_same(block(x, BlockInputs(), PATHS[path]()), expected, [x, *block.parameters()])
