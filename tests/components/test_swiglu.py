"""SwiGLU equals three linear maps and SiLU, gradients included; the trace names its steps; neurons can be ablated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.layers.reference import assert_close, assert_same, model_config, random, randomise
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
