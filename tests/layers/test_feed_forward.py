"""The feed-forward network equals two linear maps with a nonlinearity between, and says what it did on the way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import assert_same, model_config, named_feed_forward, random, randomise
from xformer.layers.feed_forward import FeedForward
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("tape", [SILENT, Tape()], ids=["fused", "taped"])
@pytest.mark.parametrize(("activation", "module"), [("relu", nn.ReLU), ("gelu", nn.GELU)])
def test_equals_a_sequential(activation: str, module: type[nn.Module], tape: Tape) -> None:
    ffn = randomise(FeedForward(model_config(activation=activation)))
    theirs = nn.Sequential(nn.Linear(13, 17), module(), nn.Linear(17, 13))
    x = random(2, 11, 13)
    expected = torch.func.functional_call(theirs, named_feed_forward(ffn, "0", "2"), (x,), strict=True)
    assert_same(ffn(x, tape=tape), expected, [x, *ffn.parameters()])


def test_without_biases() -> None:
    ffn = randomise(FeedForward(model_config(ffn_bias=False)))
    assert len(list(ffn.parameters())) == 2
    x = random(2, 11, 13)
    assert_same(ffn(x), (x @ ffn.weight_in.T).clamp(min=0) @ ffn.weight_out.T, [x, *ffn.parameters()])


def test_the_tape_sees_before_and_after_the_nonlinearity() -> None:
    ffn, tape = randomise(FeedForward(model_config(activation="relu"))), Tape()
    x = random(2, 11, 13)
    out = ffn(x, tape=tape)
    assert ffn.bias_in is not None
    assert tape.names == ["in", "pre", "post", "out"]
    assert_same(tape.activations["pre"], x @ ffn.weight_in.T + ffn.bias_in, [x, ffn.weight_in])
    assert torch.equal(tape.activations["post"], tape.activations["pre"].clamp(min=0))
    assert torch.equal(tape.activations["out"], out)
