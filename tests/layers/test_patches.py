"""Images: patches against PyTorch's convolution, the vision transformer against PyTorch's layers, and invalid images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.layers.reference import assert_close, assert_same, named_block, randomise
from xformer.config import ModelConfig
from xformer.counting import n_parameters, parameters_by_part
from xformer.decoding import decode
from xformer.edit_links import changed_source, parse_edits
from xformer.errors import ConfigError, EditError, InputError
from xformer.layers.embedding import PatchEmbedding
from xformer.model import Transformer
from xformer.model_shape import ModelShape

SIDE, PATCH = 15, 3  # 5 × 5 patches of 3 × 3
SIZES: dict[str, Any] = {
    "architecture": "encoder", "vocab_size": 11, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 7, "d_ff": 17,
    "max_len": 26, "positions": "learned", "image": SIDE, "patch": PATCH,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("float64")


def vit(**changes: Any) -> Transformer:
    return randomise(Transformer(ModelConfig(**(SIZES | changes)))).eval()


def images(n: int = 2) -> Tensor:
    return torch.randint(0, 17, (n, SIDE * SIDE), generator=torch.Generator().manual_seed(3))


def test_patch_embedding_equals_a_strided_convolution() -> None:
    embedding = randomise(PatchEmbedding(ModelConfig(**SIZES)))
    pixels = images()
    maps = nn.functional.conv2d(
        pixels.view(2, 1, SIDE, SIDE) / 16.0, embedding.weight.view(13, 1, PATCH, PATCH), embedding.bias, stride=PATCH
    )  # [batch, d_model, row, column]
    expected = torch.cat((embedding.class_token.expand(2, 1, 13), maps.flatten(2).transpose(1, 2)), dim=1)
    assert expected.shape == (2, 26, 13)
    assert_same(embedding(pixels), expected, [embedding.weight, embedding.bias, embedding.class_token])


def test_the_vision_transformer_equals_pytorchs_encoder() -> None:
    model = vit(d_model=15, d_head=5, norm="pre", activation="gelu", attention_bias=True)
    x = model.embedding(images()) + model.encoder.positions.table.table
    for block in model.encoder.blocks:
        layer = nn.TransformerEncoderLayer(15, 3, 17, 0.0, "gelu", batch_first=True, norm_first=True).eval()
        x = torch.func.functional_call(layer, named_block(block), (x,))
    norm = model.encoder.norm
    x = nn.functional.layer_norm(x, (15,), norm.weight, norm.bias)
    expected = x @ model.unembedding.weight.T + model.unembedding.bias
    assert_close(model(images()), expected, terms=1000)


@pytest.mark.parametrize("changes", [{}, {"positions": "none"}, {"d_head": 13, "n_heads": 8}, {"norm": "pre"}])
def test_parameters_are_counted_by_formula(changes: dict[str, Any]) -> None:
    config = ModelConfig(**(SIZES | changes))
    assert n_parameters(config) == sum(p.numel() for p in Transformer(config).parameters())
    part = parameters_by_part(config)[0]
    assert (part.name, part.count) == ("patch embedding", 9 * 13 + 13 + 13)


def test_decoding_an_image_gives_one_class() -> None:
    model = vit()
    [step] = decode(model, images(1))
    assert step.token == int(model(images(1))[0, 0].argmax())
    assert step.trace()["embed"].shape == (1, 26, 13)


def test_a_link_can_replace_a_pixel() -> None:
    shape = ModelShape.of(ModelConfig(**SIZES))
    [change] = parse_edits("token:224.16", shape)
    assert changed_source((change,), tuple([0] * 226))[224] == 16
    for text in ("token:225.3", "token:0.17"):
        with pytest.raises(EditError, match="pixels 0 to 224 and ink 0 to 16"):
            parse_edits(text, shape)


def test_invalid_image_configurations_and_inputs_are_refused() -> None:
    for changes, message in (
        ({"patch": 4}, "patch must divide image"),
        ({"image": 999, "patch": 3}, "at most 256"),
        ({"architecture": "decoder"}, "need an encoder"),
        ({"tied_output": True}, "tied_output=True"),
        ({"max_len": 25}, "use max_len=26"),
    ):
        with pytest.raises(ConfigError, match=message):
            ModelConfig(**(SIZES | changes))
    for tokens, more, message in (
        (torch.zeros(1, 26, dtype=torch.long), {}, "15×15 = 225 pixels, got 26"),
        (torch.full((1, 225), 17), {}, "pixels are 0 to 16, got 17"),
        (torch.full((1, 225), -1), {}, "pixels are 0 to 16, got -1"),
        (torch.zeros(1, 225, dtype=torch.long), {"pad": 0}, "no padding"),
    ):
        with pytest.raises(InputError, match=message):
            vit()(tokens, **more)
