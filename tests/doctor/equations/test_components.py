"""The registered components: correct models have no mistakes, and wrong implementations are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

import xformer
from tests.layers.reference import randomise
from xformer.doctor.equations.report import check_model, check_trace, varied_inputs
from xformer.layers.feed_forward import NormLayer

MODERN: dict[str, Any] = {
    "vocab_size": 23, "d_model": 12, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "d_head": 4, "d_ff": 37, "max_len": 19,
    "norm": "pre", "norm_kind": "rms", "activation": "swiglu", "positions": "rotary", "mask": "sliding_window", "window": 4,
}  # fmt: skip


def modern(architecture: Any = "decoder", **changes: Any) -> xformer.Transformer:
    """Return a model with all of the later components and random weights."""
    config = xformer.ModelConfig(architecture=architecture, **(MODERN | changes))
    return randomise(xformer.Transformer(config)).eval().requires_grad_(False)


def found(model: xformer.Transformer, *, with_weights: bool) -> list[str]:
    """Return the kinds of all mistakes on varied inputs, errors first."""
    inputs = varied_inputs(model.config)
    valid = {"valid": inputs.valid, "target_valid": inputs.target_valid}
    report = check_trace(inputs.record(model), **valid, model=model if with_weights else None)
    return [mistake.kind for mistake in report.mistakes if mistake.severity != "note"]


FULL_MASK = {"mask": "full", "window": 0}


@pytest.mark.parametrize(
    ("architecture", "norm", "changes"),
    [
        ("encoder", "pre", {"norm_kind": "layer"}),
        ("encoder-decoder", "post", {}),
        ("decoder", "pre", {"n_kv_heads": 1, "attention_bias": True, "ffn_bias": False} | FULL_MASK),
    ],
)
def test_correct_models_have_no_findings(architecture: str, norm: str, changes: dict[str, Any]) -> None:
    model = modern(architecture, norm=norm, **changes)
    assert found(model, with_weights=False) == []
    report = check_model(model)
    assert [mistake for mistake in report.mistakes if mistake.severity != "note"] == []
    assert not [line for line in report.unchecked if "feed-forward" in line or "q, k, v" in line]


def centred(norm: NormLayer) -> None:
    norm.forward = lambda x: F.layer_norm(x, x.shape[-1:], norm.weight, None, norm.eps)


def without_root(norm: NormLayer) -> None:
    norm.forward = lambda x: norm.weight * x / (x.square().mean(dim=-1, keepdim=True) + norm.eps)


def summed(norm: NormLayer) -> None:
    norm.forward = lambda x: norm.weight * x / (x.square().sum(dim=-1, keepdim=True) + norm.eps).sqrt()


@pytest.mark.parametrize(("put", "norm"), [(centred, "post"), (without_root, "pre"), (summed, "pre")])
def test_a_wrong_rms_norm_is_found(put: Callable[[NormLayer], None], norm: str) -> None:
    model = modern("encoder-decoder", norm=norm)
    for module in model.modules():
        if isinstance(module, NormLayer):
            put(module)
    assert found(model, with_weights=True)


@pytest.mark.parametrize("changes", [{"window": 3}, {"window": 5}, FULL_MASK])
def test_a_window_that_differs_from_the_configuration_is_found(changes: dict[str, Any]) -> None:
    model = modern()
    assert model.decoder is not None
    model.decoder.config = model.config.replace(**changes)
    assert found(model, with_weights=False) == ["wrong_mask"]


def test_differing_heads_within_a_group_are_found() -> None:
    model = modern()
    attention: Any = model.get_submodule("decoder.blocks.0.attn")
    share = attention.share

    def shifted(x: Tensor) -> Tensor:
        made = share(x).clone()
        made[:, 1] += 0.5
        return made

    attention.share = shifted
    assert "wrong_projection" in found(model, with_weights=False)


def test_wrong_rotation_angles_are_found() -> None:
    model = modern()
    positions: Any = model.get_submodule("decoder.positions")
    right = positions.angles
    positions.angles = lambda at, dtype: right(2 * at, dtype)
    assert "wrong_rotary" in found(model, with_weights=False)
