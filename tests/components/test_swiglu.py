"""SwiGLU equals three linear maps and SiLU, gradients included; the trace names its steps; neurons can be ablated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.layers.reference import assert_close, assert_same, build, inputs, model_config, random, randomise
from xformer import edits
from xformer.counting import n_parameters
from xformer.layers.feed_forward import FeedForward
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


def by_hand(ffn: FeedForward, x: Tensor) -> Tensor:
    """The equation with `nn.Linear` and `nn.SiLU`."""
    up, gate, down = nn.Linear(13, 17), nn.Linear(13, 17), nn.Linear(17, 13)
    run = torch.func.functional_call
    assert ffn.bias_in is not None
    assert ffn.bias_gate is not None
    assert ffn.bias_out is not None
    lifted = run(up, {"weight": ffn.weight_in, "bias": ffn.bias_in}, (x,))
    opened = run(gate, {"weight": ffn.weight_gate, "bias": ffn.bias_gate}, (x,))
    return run(down, {"weight": ffn.weight_out, "bias": ffn.bias_out}, (nn.SiLU()(opened) * lifted,))


@pytest.mark.parametrize("tape", [SILENT, Tape()], ids=["fused", "recorded"])
def test_equals_three_linear_maps(tape: Tape) -> None:
    ffn, x = randomise(FeedForward(model_config(activation="swiglu"))), random(2, 11, 13)
    assert_same(ffn(x, tape=tape), by_hand(ffn, x), [x, *ffn.parameters()])


def test_without_biases() -> None:
    ffn, x = randomise(FeedForward(model_config(activation="swiglu", ffn_bias=False))), random(2, 11, 13)
    assert sorted(name for name, _ in ffn.named_parameters()) == ["weight_gate", "weight_in", "weight_out"]
    gate = x @ ffn.weight_gate.T
    expected = (gate * gate.sigmoid() * (x @ ffn.weight_in.T)) @ ffn.weight_out.T
    assert_same(ffn(x), expected, [x, *ffn.parameters()])


def test_the_trace_names_gate_and_up() -> None:
    ffn, tape, x = randomise(FeedForward(model_config(activation="swiglu"))), Tape(), random(2, 11, 13)
    ffn(x, tape=tape)
    at = tape.activations
    assert ffn.bias_gate is not None
    assert ffn.bias_in is not None
    assert tape.names == ["in", "pre", "gate", "up", "post", "out"]
    assert_close(at["pre"], x @ ffn.weight_gate.T + ffn.bias_gate)
    assert_close(at["up"], x @ ffn.weight_in.T + ffn.bias_in)
    assert_close(at["gate"], at["pre"] * at["pre"].sigmoid())
    assert_close(at["post"], at["gate"] * at["up"])


@pytest.mark.parametrize("ffn_bias", [True, False])
def test_the_formula_counts_three_matrices(ffn_bias: bool) -> None:
    model = build(activation="swiglu", ffn_bias=ffn_bias)
    assert n_parameters(model.config) == sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for name, p in model.named_parameters() if ".ffn.weight" in name) == 2 * 3 * 13 * 17


def test_an_ablated_neuron_adds_nothing() -> None:
    model = build(activation="swiglu")
    given = inputs(model)
    trace = xformer.record(model, *given, edits=[edits.ablate_neuron("encoder.1.ffn", 5)])
    plain = xformer.record(model, *given)
    post, column = plain["encoder.1.ffn.post"][..., 5:6], model.get_parameter("encoder.blocks.1.ffn.weight_out")[:, 5]
    assert_close(trace["encoder.1.ffn.out"], plain["encoder.1.ffn.out"] - post * column)
    assert not torch.equal(trace.logits, plain.logits)
