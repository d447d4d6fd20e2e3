"""Going on from a cache gives the logits of the whole sequence computed at once, and computes only what is new."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.layers.reference import WHOLE_MODEL, assert_close, build, inputs, random_tokens
from xformer.errors import InputError
from xformer.layers.cache import Cache, LayerCache
from xformer.model import Transformer

pytestmark = pytest.mark.usefixtures("float64")

CHUNKS = {"token by token": [1] * 11, "in chunks": [3, 1, 5, 2], "a prompt first": [10, 1], "at once": [11]}


def extend(model: Transformer, tokens: Tensor, chunks: list[int], memory: Tensor | None) -> tuple[Tensor, Cache]:
    cache = Cache.empty(model.config.n_layers)
    logits = [model.extend(chunk, cache, memory) for chunk in tokens.split(chunks, dim=1)]
    return torch.cat(logits, dim=1), cache


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("see_self", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "none"])
@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_a_cached_run_equals_the_whole_one(architecture: str, positions: str, see_self: bool, chunks: str) -> None:
    model = build(architecture=architecture, positions=positions, see_self=see_self, norm="pre")
    arguments = inputs(model)
    memory = model.encode(arguments[0]) if architecture == "encoder-decoder" else None
    logits, cache = extend(model, arguments[-1], CHUNKS[chunks], memory)
    assert_close(logits, model(*arguments), WHOLE_MODEL)
    assert cache.length == 11
    for layer in cache.self_attention:
        assert layer.k is not None
        assert layer.v is not None
        assert (layer.k.shape, layer.v.shape) == ((2, 3, 11, 10), (2, 3, 11, 7))


@pytest.mark.usefixtures("unchecked")
@torch.no_grad()
def test_keys_of_the_memory_are_computed_once() -> None:
    model = build(architecture="encoder-decoder")
    source, target = inputs(model)
    memory, cache = model.encode(source), Cache.empty(2)
    first = model.extend(target[:, :2], cache, memory)
    kept = [(layer.k, layer.v) for layer in cache.cross_attention]
    # The memory is not read any more: one without any features could not be projected.
    second = model.extend(target[:, 2:], cache, memory[..., :0])
    assert_close(torch.cat((first, second), dim=1), model(source, target), WHOLE_MODEL)
    for layer, (k, v) in zip(cache.cross_attention, kept, strict=True):
        assert layer.k is k
        assert layer.v is v


@torch.no_grad()
def test_caches_of_two_decodings_are_independent() -> None:
    model = build(architecture="decoder")
    here, there = random_tokens(2, 5), random_tokens(2, 5, seed=1)
    mine, other = Cache.empty(2), Cache.empty(2)
    logits = []
    for n in range(5):
        logits.append(model.extend(here[:, n : n + 1], mine))
        model.extend(there[:, n : n + 1], other)
    assert_close(torch.cat(logits, dim=1), model(here), WHOLE_MODEL)


def test_a_layer_cache_appends_and_a_cross_cache_does_not() -> None:
    k, v = torch.randn(2, 3, 5, 10), torch.randn(2, 3, 5, 7)
    grown, crossed = LayerCache(), LayerCache(is_cross=True)
    assert crossed.kept_for_good is None
    for layer in (grown, crossed):
        layer.extend(k[:, :, :2], v[:, :, :2])
    assert crossed.kept_for_good is not None
    assert grown.kept_for_good is None
    grown.extend(k[:, :, 2:], v[:, :, 2:])
    crossed.extend(*crossed.kept_for_good)
    assert grown.k is not None
    assert grown.v is not None
    assert torch.equal(grown.k, k)
    assert torch.equal(grown.v, v)
    assert crossed.k is not None
    assert torch.equal(crossed.k, k[:, :, :2])


def test_what_cannot_go_on_from_a_cache_says_so() -> None:
    with pytest.raises(InputError, match="take a decoder"):
        build(architecture="encoder").extend(random_tokens(1, 3), Cache.empty(2))


def test_a_cache_cannot_outgrow_the_model() -> None:
    model, cache = build(architecture="decoder"), Cache.empty(2)
    model.extend(random_tokens(1, 29), cache)
    with pytest.raises(InputError, match="at most 29 tokens, got 30"):
        model.extend(random_tokens(1, 1), cache)


def test_an_encoder_decoder_cannot_go_on_without_the_memory() -> None:
    model = build(architecture="encoder-decoder")
    with pytest.raises(InputError, match="memory"):
        model.extend(random_tokens(1, 3), Cache.empty(2))
