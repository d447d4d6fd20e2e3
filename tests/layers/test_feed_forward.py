"""The feed-forward network equals two linear maps with a nonlinearity in between, and records its intermediates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import assert_close, assert_same, model_config, named_feed_forward, random, randomise
from xformer.layers.feed_forward import FeedForwardLayer, NormLayer
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("tape", [SILENT, Tape()], ids=["fused", "taped"])
@pytest.mark.parametrize(("activation", "module"), [("relu", nn.ReLU), ("gelu", nn.GELU)])
def test_equals_a_sequential(activation: str, module: type[nn.Module], tape: Tape) -> None:
    ffn = randomise(FeedForwardLayer(model_config(activation=activation)))
    theirs = nn.Sequential(nn.Linear(13, 17), module(), nn.Linear(17, 13))
    x = random(2, 11, 13)
    expected = torch.func.functional_call(theirs, named_feed_forward(ffn, "0", "2"), (x,), strict=True)
    assert_same(ffn(x, tape=tape), expected, [x, *ffn.parameters()])


def test_the_tape_records_before_and_after_the_nonlinearity() -> None:
    ffn, tape = randomise(FeedForwardLayer(model_config(activation="relu"))), Tape()
    x = random(2, 11, 13)
    out = ffn(x, tape=tape)
    assert tape.names == ["in", "pre", "post", "out"]
    assert_same(tape.activations["pre"], x @ ffn.weight_in.T + ffn.bias_in, [x, ffn.weight_in])
    assert torch.equal(tape.activations["post"], tape.activations["pre"].clamp(min=0))
    assert torch.equal(tape.activations["out"], out)


def test_the_tape_records_the_gate_and_its_factor() -> None:
    ffn, tape, x = randomise(FeedForwardLayer(model_config(activation="swiglu"))), Tape(), random(2, 11, 13)
    ffn(x, tape=tape)
    at = tape.activations
    assert tape.names == ["in", "pre", "gate", "up", "post", "out"]
    assert_close(at["pre"], x @ ffn.weight_gate.T + ffn.bias_gate)
    assert_close(at["up"], x @ ffn.weight_in.T + ffn.bias_in)
    assert_close(at["gate"], at["pre"] * at["pre"].sigmoid())
    assert_close(at["post"], at["gate"] * at["up"])


def norm_of(norm_kind: str, eps: float) -> NormLayer:
    """Return a norm of 13 dimensions with random parameters."""
    return randomise(NormLayer(model_config(norm_kind=norm_kind, norm_eps=eps)))


@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize(("kind", "module"), [("layer", nn.LayerNorm), ("rms", nn.RMSNorm)])
def test_a_norm_equals_pytorchs_and_its_equation(kind: str, module: type[nn.Module], eps: float) -> None:
    norm, x = norm_of(kind, eps), random(2, 11, 13)
    names = dict(norm.named_parameters())
    assert list(names) == (["weight", "bias"] if kind == "layer" else ["weight"])
    expected = torch.func.functional_call(module(13, eps=eps), names, (x,), strict=True)
    assert_same(norm(x), expected, [x, *norm.parameters()])
    apart = x - x.mean(dim=-1, keepdim=True) if kind == "layer" else x
    written = norm.weight * apart / (apart.square().mean(dim=-1, keepdim=True) + eps).sqrt() + names.get("bias", 0.0)
    assert_same(norm(x), written, [x, *norm.parameters()])


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_standardised_equals_the_norm_before_its_parameters(norm_kind: str) -> None:
    norm, x = norm_of(norm_kind, 0.1), random(2, 11, 13).detach()
    normal, roundings = norm.component.standardised(x, 0.1)
    shift = torch.zeros(13) if norm.bias is None else norm.bias
    assert_close(norm.weight * normal + shift, norm(x))
    assert (roundings >= 13).all()
