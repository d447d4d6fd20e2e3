"""A stack equals PyTorch's encoder, and a whole encoder-decoder equals `nn.Transformer`: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import (
    TORCH_SIZES,
    WHOLE_MODEL,
    assert_same,
    model_config,
    named_block,
    named_cross_block,
    named_norm,
    random,
    random_tokens,
    randomise,
    under,
)
from xformer.layers.block import Block, BlockInputs
from xformer.layers.masks import Layout
from xformer.layers.stack import Stack
from xformer.model import Transformer
from xformer.positions.sinusoidal import sinusoidal
from xformer.tape import Tape

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
