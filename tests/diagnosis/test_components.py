"""The registered components: nothing is found in right models of them, and each wrong implementation is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import xformer
from tests.layers.reference import ARCHITECTURES, randomise
from xformer.bugs import BUGS
from xformer.diagnosis.case import Case
from xformer.diagnosis.diagnose import check_up, diagnose, examination
from xformer.layers.feed_forward import Norm

MODERN: dict[str, Any] = {
    "vocab_size": 23, "d_model": 12, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "d_head": 4, "d_ff": 37, "max_len": 19,
    "norm": "pre", "norm_kind": "rms", "activation": "swiglu", "positions": "rotary", "mask": "sliding_window", "window": 4,
}  # fmt: skip


def modern(architecture: Any = "decoder", **changes: Any) -> xformer.Transformer:
    """A model of all new components with random weights."""
    config = xformer.ModelConfig(architecture=architecture, **(MODERN | changes))
    return randomise(xformer.Transformer(config)).eval().requires_grad_(False)


def found(model: xformer.Transformer, *, with_weights: bool) -> list[str]:
    """The kinds of all findings on an examination, errors first."""
    inputs = examination(model.config)
    valid = {"valid": inputs.valid, "target_valid": inputs.target_valid}
    report = diagnose(inputs.record(model), **valid, model=model if with_weights else None)
    return [finding.kind for finding in report.findings if finding.severity != "note"]


CHANGES: dict[str, dict[str, Any]] = {
    "all": {}, "full-mask": {"mask": "full", "window": 0}, "layer-norm": {"norm_kind": "layer"},
    "one-group": {"n_kv_heads": 1, "attention_bias": True, "ffn_bias": False},
}  # fmt: skip


KINDS = [(architecture, norm) for architecture in ARCHITECTURES for norm in ("pre", "post")]


def in_turn(*values: Any) -> list[Any]:
    """Each value with every architecture, and with each place of the norm in turn."""
    return [(value, *kind) for n, value in enumerate(values) for kind in KINDS[n % 2 :: 2]]


@pytest.mark.parametrize(("changes", "architecture", "norm"), in_turn(*CHANGES.values()))
def test_no_false_alarm(architecture: str, norm: str, changes: dict[str, Any]) -> None:
    model = modern(architecture, norm=norm, **changes)
    assert found(model, with_weights=False) == []
    report = check_up(model)
    assert [finding for finding in report.findings if finding.severity != "note"] == []
    assert not [line for line in report.left_open if "feed-forward" in line or "q, k, v" in line]


@pytest.mark.parametrize(("bug", "architecture", "norm"), in_turn("gate-and-up-swapped", "kv-heads-tiled"))
def test_each_bug_has_its_name(bug: str, architecture: str, norm: str) -> None:
    broken = BUGS[bug].broken(modern(architecture, norm=norm))
    for with_weights in (False, True):
        assert found(broken, with_weights=with_weights)[:1] == [bug]


def centred(norm: Norm) -> None:
    norm.forward = lambda x: F.layer_norm(x, x.shape[-1:], norm.weight, None, norm.eps)


def without_root(norm: Norm) -> None:
    norm.forward = lambda x: norm.weight * x / (x.square().mean(dim=-1, keepdim=True) + norm.eps)


def summed(norm: Norm) -> None:
    norm.forward = lambda x: norm.weight * x / (x.square().sum(dim=-1, keepdim=True) + norm.eps).sqrt()


@pytest.mark.parametrize(("put", "architecture", "norm"), in_turn(centred, without_root, summed))
def test_a_wrong_rms_norm_is_found(put: Callable[[Norm], None], norm: str, architecture: str) -> None:
    model = copy.deepcopy(modern(architecture, norm=norm))
    for module in model.modules():
        if isinstance(module, Norm):
            put(module)
    for with_weights in (True, False):
        kinds = found(model, with_weights=with_weights)
        assert kinds
        assert (kinds[0] == "other-norm") == (put is centred)


WINDOWS = (
    ({"window": 5}, "window-off-by-one"),
    ({"window": 9}, "window-ignored"),
    (CHANGES["full-mask"], "window-ignored"),
)


@pytest.mark.parametrize(("changes", "kind"), WINDOWS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_wider_window_than_configured_is_found(architecture: str, changes: dict[str, Any], kind: str) -> None:
    model = modern(architecture)
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            stack.config = stack.config.replace(**changes)
    for with_weights in (False, True):
        assert found(model, with_weights=with_weights)[:1] == [kind]


def test_a_narrower_window_than_configured_is_found() -> None:
    model = modern()
    assert model.decoder is not None
    model.decoder.config = model.config.replace(window=3)
    assert found(model, with_weights=False) == ["wrong-mask"]


def test_heads_of_a_group_that_differ_are_found() -> None:
    model = modern()
    attention: Any = model.get_submodule("decoder.blocks.0.attn")
    share = attention.share

    def shifted(x: Tensor) -> Tensor:
        made = share(x).clone()
        made[:, 1] += 0.5
        return made

    attention.share = shifted
    assert "wrong-projection" in found(model, with_weights=False)


def test_a_fresh_model_is_told_from_a_trained_one() -> None:
    for norm in ("pre", "post"):
        config = modern(norm=norm).config
        fresh = xformer.Transformer(config, torch.Generator().manual_seed(0)).eval()
        for model, expected in ((fresh, True), (randomise(copy.deepcopy(fresh)), False)):
            inputs = examination(config)
            assert Case(inputs.record(model), inputs.valid, None).is_fresh is expected
