"""The sliding window: the permitted keys, with causality, a cache and edits."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.layers.reference import assert_close, build, inputs, model_config
from xformer import edits
from xformer.errors import ConfigError
from xformer.layers.attention import Cache

pytestmark = pytest.mark.usefixtures("float64")

WINDOW = {"mask": "sliding_window", "window": 4}


@pytest.mark.parametrize(("causal", "see_self"), [(True, True), (True, False), (False, True)])
def test_the_pattern_is_zero_outside_the_window_and_masked_in_the_trace(causal: bool, see_self: bool) -> None:
    model = build(causal=causal, see_self=see_self, **WINDOW)
    trace = xformer.record(model, *inputs(model))
    offset = torch.arange(11) - torch.arange(11)[:, None]  # [query, key]
    allowed = offset.abs() < 4
    if causal:
        allowed = allowed & (offset <= (0 if see_self else -1))
    for layer in range(2):
        at = f"encoder.{layer}.attn"
        assert torch.equal(trace[f"{at}.pattern"] > 0, allowed.expand(2, 3, 11, 11))
        assert torch.equal(trace[f"{at}.mask"], allowed.expand(2, 3, 11, 11))
        assert torch.equal(trace[f"{at}.scores"].isneginf(), ~allowed.expand(2, 3, 11, 11))


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_decoding_with_a_cache_uses_the_same_window(architecture: str) -> None:
    model = build(architecture=architecture, positions="rotary", norm="pre", **WINDOW)
    given, cache = inputs(model), Cache.empty(2)
    memory = model.encode(given[0]) if architecture == "encoder-decoder" else None
    logits = [model.extend(chunk, cache, memory) for chunk in given[-1].split([3, 1, 5, 2], dim=1)]
    assert_close(torch.cat(logits, dim=1), model(*given), terms=1000)


def test_removing_causality_keeps_the_window() -> None:
    model = build(architecture="decoder", **WINDOW)
    trace = xformer.record(model, *inputs(model), edits=[edits.set_causal(False)])
    offset = torch.arange(11) - torch.arange(11)[:, None]
    assert torch.equal(trace["decoder.0.attn.pattern"][0, 0] > 0, offset.abs() < 4)


def test_cross_attention_has_no_window() -> None:
    model = build(architecture="encoder-decoder", **WINDOW)
    trace = xformer.record(model, *inputs(model))
    assert (trace["decoder.0.cross_attn.pattern"] > 0).all()
    assert (trace["encoder.0.attn.pattern"] == 0).any()


def test_an_invalid_window_is_refused() -> None:
    blind = {"mask": "sliding_window", "window": 1, "causal": True, "see_self": False}
    for changes, message in (
        ({"mask": "sliding_window"}, "needs a window of at least 1, got window=0"),
        (blind, "needs a window of at least 2, got window=1"),
        ({"mask": "window"}, "mask must be one of 'full', 'sliding_window'"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_config(**changes)
