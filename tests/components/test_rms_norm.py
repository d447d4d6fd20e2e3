"""RMSNorm in a whole model: it has no shift, its parameters are counted, and the trace keeps what it gives."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.layers.reference import assert_same, build, inputs, model_config
from xformer.counting import n_parameters, parameters_by_part
from xformer.errors import ConfigError
from xformer.layers.feed_forward import Norm

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
def test_a_model_has_one_scale_a_norm_and_the_formula_counts_them(architecture: str, norm: str) -> None:
    model = build(architecture=architecture, norm=norm, norm_kind="rms")
    norms = [module for module in model.modules() if isinstance(module, Norm)]
    assert {name for module in norms for name, _ in module.named_parameters()} == {"weight"}
    assert n_parameters(model.config) == sum(p.numel() for p in model.parameters())
    counted = [part for part in parameters_by_part(model.config) if part.name.endswith("norms")]
    assert sum(part.count for part in counted) == 13 * len(norms)
    assert all(part.formula.endswith("× 13") for part in counted)


def test_the_last_norm_of_the_trace_is_its_equation() -> None:
    model = build(architecture="decoder", norm="pre", norm_kind="rms", norm_eps=0.1)
    trace = xformer.record(model, *inputs(model))
    x, weight = trace["decoder.1.resid_post"], model.get_parameter("decoder.norm.weight")
    torch.testing.assert_close(trace["final_norm"], weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt())


def test_fused_and_recorded_runs_agree_with_their_gradients() -> None:
    model = build(architecture="decoder", norm="pre", norm_kind="rms")
    from xformer.tape import Tape

    given = inputs(model)
    assert_same(model(*given), model(*given, tape=Tape()), list(model.parameters()), terms=1000)


def test_an_unknown_kind_is_refused_with_the_registered_ones() -> None:
    with pytest.raises(ConfigError, match="norm_kind must be one of 'layer', 'rms', got 'batch'"):
        model_config(norm_kind="batch")
