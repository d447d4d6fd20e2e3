"""The weights of a mixture of experts, compared with the stock model's own router."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer import edits
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.errors import UnavailableError

NAME = "decoder.1.ffn.experts"
TEXT = "the cat sat on the mat and the dog"


@pytest.fixture(scope="module")
def mixtral() -> HuggingFaceModel:
    return HuggingFaceModel.open(FAMILIES["Mixtral"].make(), tokenizer(), "mixtral")


def stock_router(ids: Tensor, change: Any = None) -> tuple[tuple[Tensor, ...], Tensor]:
    """The output of the router in a stock model's second layer, and the logits."""
    model, outputs = FAMILIES["Mixtral"].make(), []

    def hook(module: Any, args: Any, output: tuple[Tensor, ...]) -> Any:
        outputs.append(output)
        return None if change is None else change(*output)

    model.model.layers[1].mlp.gate.register_forward_hook(hook)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    return outputs[0], logits


def test_expert_weights_match_the_stock_router(mixtral: HuggingFaceModel) -> None:
    reading = xformer.read(mixtral, TEXT)
    (_, weights, numbers), logits = stock_router(reading.example.stream)
    found = reading[NAME]
    assert found.shape == (1, len(reading.tokens), 4)
    assert mixtral.shape.experts == {"decoder.0.ffn": 4, "decoder.1.ffn": 4}
    for position, (each, experts) in enumerate(zip(weights, numbers, strict=True)):
        wanted = torch.zeros(4)
        wanted[experts] = each
        torch.testing.assert_close(found[0, position], wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(reading.logits, logits, rtol=0, atol=1e-5)
    table = xformer.analysis.expert_weights(reading, layer=1)
    assert table["weight"].tolist() == pytest.approx(found.flatten().tolist())
    assert table["token"].tolist()[::4] == list(reading.tokens)


def test_setting_an_expert_weight_to_zero_has_the_same_effect_as_in_the_stock_model(mixtral: HuggingFaceModel) -> None:
    reading = xformer.read(mixtral, TEXT)
    one = int(reading[NAME][0, 2].argmax())
    without = reading[NAME].clone()
    without[..., one] = 0
    changed = xformer.read(mixtral, TEXT, edits=[edits.replace(NAME, without)])

    def drop(scores: Tensor, weights: Tensor, numbers: Tensor) -> tuple[Tensor, ...]:
        return scores, weights.masked_fill(numbers == one, 0.0), numbers

    _, wanted = stock_router(reading.example.stream, drop)
    assert not torch.allclose(changed.logits, reading.logits, atol=1e-3)
    torch.testing.assert_close(changed.logits, wanted, rtol=0, atol=1e-5)


def test_a_dense_model_has_no_experts() -> None:
    model = HuggingFaceModel.open(FAMILIES["Llama"].make(), tokenizer())
    assert model.shape.experts == {}
    with pytest.raises(UnavailableError, match=r"no activation 'decoder\.0\.ffn\.experts'"):
        xformer.analysis.expert_weights(xformer.read(model, TEXT), layer=0)
