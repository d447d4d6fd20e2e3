"""A sliding window: which keys it allows, cell by cell; how far information moves; with cache, padding and edits."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.layers.reference import ARCHITECTURES, assert_close, assert_same, build, inputs, model_config
from xformer import edits
from xformer.errors import ConfigError
from xformer.layers.attention import Cache
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")

WINDOW = {"mask": "sliding_window", "window": 4}


@pytest.mark.parametrize(("n_query", "n_key"), [(11, 11), (3, 11), (1, 11)])
def test_the_mask_cell_by_cell(n_query: int, n_key: int) -> None:
    config = model_config(**WINDOW)
    allowed = config.mask_component.allowed(config, n_query, n_key)
    assert allowed is not None
    for query in range(n_query):
        here = n_key - n_query + query  # the last query stands at the last key
        for key in range(n_key):
            assert bool(allowed[query, key]) == (abs(key - here) < 4)


def test_a_window_as_long_as_the_input_masks_nothing() -> None:
    config = model_config(**WINDOW)
    assert config.mask_component.allowed(config, 4, 4) is None
    assert config.mask_component.allowed(config, 5, 5) is not None


@pytest.mark.parametrize("see_self", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_the_pattern_is_zero_outside_and_masked_in_the_trace(causal: bool, see_self: bool) -> None:
    if not (causal or see_self):
        return
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_and_recorded_runs_agree_with_their_gradients(architecture: str) -> None:
    model = build(architecture=architecture, **WINDOW)
    given = inputs(model)
    assert_same(model(*given), model(*given, tape=Tape()), list(model.parameters()), terms=1000)


@pytest.mark.parametrize(("n_layers", "reach"), [(1, 3), (2, 6)])
@torch.no_grad()
def test_information_moves_one_window_a_layer(n_layers: int, reach: int) -> None:
    model = build(architecture="decoder", n_layers=n_layers, **WINDOW)
    [tokens] = inputs(model)
    before = model(tokens)
    for at in range(11):
        changed = tokens.clone()
        changed[:, at] = changed[:, at] % 22 + 1
        moved = (model(changed) != before).any(dim=-1).any(dim=0).nonzero()[:, 0]
        assert moved.tolist() == list(range(at, min(11, at + reach + 1)))


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_decoding_from_a_cache_sees_the_same_window(architecture: str) -> None:
    model = build(architecture=architecture, positions="rotary", norm="pre", **WINDOW)
    given, cache = inputs(model), Cache.empty(2)
    memory = model.encode(given[0]) if architecture == "encoder-decoder" else None
    logits = [model.extend(chunk, cache, memory) for chunk in given[-1].split([3, 1, 5, 2], dim=1)]
    assert_close(torch.cat(logits, dim=1), model(*given), terms=1000)


@torch.no_grad()
def test_padding_in_front_changes_nothing() -> None:
    model = build(architecture="decoder", **WINDOW)
    [tokens] = inputs(model)
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), tokens), dim=1)
    assert_close(model(padded, pad=0)[:, 3:], model(tokens), terms=1000)


def test_lifting_causality_leaves_the_window() -> None:
    model = build(architecture="decoder", **WINDOW)
    trace = xformer.record(model, *inputs(model), edits=[edits.set_causal(False)])
    offset = torch.arange(11) - torch.arange(11)[:, None]
    assert torch.equal(trace["decoder.0.attn.pattern"][0, 0] > 0, offset.abs() < 4)


def test_a_full_mask_ignores_the_window() -> None:
    plain, other = build(architecture="decoder"), build(architecture="decoder", window=4)
    assert torch.equal(plain(*inputs(plain)), other(*inputs(other)))


def test_cross_attention_has_no_window() -> None:
    model = build(architecture="encoder-decoder", **WINDOW)
    trace = xformer.record(model, *inputs(model))
    assert (trace["decoder.0.cross_attn.pattern"] > 0).all()
    assert (trace["encoder.0.attn.pattern"] == 0).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": "sliding_window"}, "needs a window of at least 1, got window=0"),
        (
            {"mask": "sliding_window", "window": 1, "causal": True, "see_self": False},
            "needs a window of at least 2, got window=1",
        ),
        ({"mask": "window"}, "mask must be one of 'full', 'sliding_window', got 'window'"),
    ],
)
def test_a_window_that_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_config(**changes)
