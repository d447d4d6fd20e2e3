"""Attention equals PyTorch's module and the equation computed head by head, values and gradients; decoding with a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.layers.reference import (
    POSITIONS,
    TORCH_SIZES,
    WHOLE_MODEL,
    assert_close,
    assert_same,
    attention_by_hand,
    build,
    inputs,
    model_config,
    named_attention,
    random,
    random_tokens,
    randomise,
)
from xformer.errors import InputError
from xformer.layers.attention import Attention, Cache
from xformer.layers.masks import NO_MASK, LayerMask
from xformer.model import Transformer
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")

PATHS = {"fused": lambda: SILENT, "taped": Tape}
BATCH, QUERY, SOURCE = 2, 11, 19


def mask_of(masking: str, n_key: int, n_query: int = QUERY) -> LayerMask:
    """Return the mask named `masking`, which has no empty rows."""
    if masking == "causal":
        return LayerMask(causal=torch.ones(n_query, n_key, dtype=torch.bool).tril(), is_plain_causal=True)
    if masking == "padding":
        valid = torch.arange(n_key) < torch.tensor([[n_key], [n_key - 5]])  # [batch, key]
        return LayerMask(layout=valid[:, None, None, :])
    if masking == "drawn":
        drawn = torch.rand(n_query, n_key, generator=torch.Generator().manual_seed(1)) < 0.5
        drawn[:, 3] = True
        return LayerMask(layout=drawn[None, None])
    return NO_MASK


CASES = [(masking, cross) for masking in ("none", "causal", "padding", "drawn") for cross in (False, True)]
CASES.remove(("causal", True))


def case(masking: str, cross: bool, width: int) -> tuple[Tensor, Tensor, LayerMask, list[Tensor]]:
    """Return queries, the memory (the queries themselves for self-attention), a mask, and the leaves for gradients."""
    x = random(BATCH, QUERY, width)
    memory = random(BATCH, SOURCE, width, seed=1) if cross else x
    return x, memory, mask_of(masking, memory.shape[1]), [x, memory] if cross else [x]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("masking", "cross", "bias"), [(*one, number % 3 != 1) for number, one in enumerate(CASES)])
def test_equals_multihead_attention(path: str, masking: str, cross: bool, bias: bool) -> None:
    attention = randomise(Attention(model_config(**TORCH_SIZES | {"attention_bias": bias})))
    theirs = nn.MultiheadAttention(15, 3, bias=bias, batch_first=True)
    x, memory, mask, leaves = case(masking, cross, 15)
    call: dict[str, Any] = {"need_weights": True, "average_attn_weights": False}
    if masking == "padding":
        call["key_padding_mask"] = ~mask.layout[:, 0, 0]
    elif mask.allowed is not None:
        call["attn_mask"] = ~mask.allowed[0, 0]
    tape = PATHS[path]()
    actual = attention(x, memory if cross else None, mask=mask, tape=tape)
    names = named_attention(attention)
    expected, weights = torch.func.functional_call(theirs, names, (x, memory, memory), call, strict=True)
    assert_same(actual, expected, [*leaves, *attention.parameters()])
    if isinstance(tape, Tape):
        assert_close(tape.activations["pattern"], weights)


@pytest.mark.parametrize("path", PATHS)
def test_a_position_bias_is_added_to_the_scores(path: str) -> None:
    attention = randomise(Attention(model_config()))
    x, bias = random(BATCH, QUERY, 13), random(3, QUERY, QUERY, seed=1)
    mask = mask_of("causal", QUERY)
    allowed = mask.causal.expand(BATCH, 3, QUERY, QUERY)
    actual = attention(x, mask=mask, position_bias=bias[None], tape=PATHS[path]())
    assert_same(actual, attention_by_hand(attention, x, x, allowed, bias), [x, bias, *attention.parameters()])


def test_per_head_weight_views_write_through_to_the_fused_path() -> None:
    attention = randomise(Attention(model_config()))
    x = random(BATCH, QUERY, 13)
    before = attention(x)
    views = [attention.W_Q, attention.W_K, attention.W_V, attention.W_O, attention.b_Q, attention.b_K, attention.b_V]
    with torch.no_grad():
        for n, view in enumerate(views):
            view[1].copy_(random(*view.shape[1:], seed=n))
    after = attention(x)
    assert not torch.allclose(before, after)
    assert_same(after, attention_by_hand(attention, x, x), [x, *attention.parameters()])
    for view, shape in zip(views, [(13, 10), (13, 10), (13, 7), (7, 13), (10,), (10,), (7,)], strict=True):
        assert view.shape == (3, *shape)
        assert view.untyped_storage().data_ptr() in {p.untyped_storage().data_ptr() for p in attention.parameters()}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("empty", ["see_self", "drawn"])
def test_a_query_without_keys_gets_zeros_and_finite_gradients(path: str, empty: str) -> None:
    attention, tape = randomise(Attention(model_config())), PATHS[path]()
    x = random(BATCH, QUERY, 13)
    allowed = torch.ones(QUERY, QUERY, dtype=torch.bool)
    allowed = allowed.tril(-1) if empty == "see_self" else allowed.index_fill(0, torch.tensor([0, 7]), False)
    mask = LayerMask(causal=allowed, rows_may_be_empty=True)
    actual = attention(x, mask=mask, tape=tape)
    assert_close(actual[:, 0], attention.b_O.expand(BATCH, 13))  # zeros · W_O + b_O
    expected = attention_by_hand(attention, x, x, allowed.expand(BATCH, 3, QUERY, QUERY))
    assert_same(actual, expected, [x, *attention.parameters()])
    if isinstance(tape, Tape):
        assert (tape.activations["pattern"][:, :, 0] == 0).all()
        assert (tape.activations["z"][:, :, 0] == 0).all()


CHUNKS = ([1] * 11, [3, 1, 5, 2], [10, 1])
CACHED = [(("decoder", "encoder-decoder")[n % 2], p) for n, p in enumerate(POSITIONS) if p != "mirror"]


def extend(model: Transformer, tokens: Tensor, chunks: list[int], memory: Tensor | None) -> tuple[Tensor, Cache]:
    cache = Cache.empty(model.config.n_layers)
    logits = [model.extend(chunk, cache, memory) for chunk in tokens.split(chunks, dim=1)]
    return torch.cat(logits, dim=1), cache


@pytest.mark.parametrize(
    ("architecture", "positions", "chunks"), [(*kind, CHUNKS[number % 3]) for number, kind in enumerate(CACHED)]
)
@torch.no_grad()
def test_a_cached_run_equals_the_whole_one(architecture: str, positions: str, chunks: list[int]) -> None:
    model = build(architecture=architecture, positions=positions, see_self=len(chunks) != 4, norm="pre")
    arguments = inputs(model)
    memory = model.encode(arguments[0]) if architecture == "encoder-decoder" else None
    logits, cache = extend(model, arguments[-1], chunks, memory)
    assert_close(logits, model(*arguments), WHOLE_MODEL)
    assert cache.length == 11
    for layer in cache.self_attention:
        assert (layer.k.shape, layer.v.shape) == ((2, 3, 11, 10), (2, 3, 11, 7))


@pytest.mark.usefixtures("unchecked")
@torch.no_grad()
def test_cross_attention_keys_are_computed_once() -> None:
    model = build(architecture="encoder-decoder")
    source, target = inputs(model)
    memory, cache = model.encode(source), Cache.empty(2)
    first = model.extend(target[:, :2], cache, memory)
    kept = [(layer.k, layer.v) for layer in cache.cross_attention]
    # The memory is no longer read: a memory without features could not be projected.
    second = model.extend(target[:, 2:], cache, memory[..., :0])
    assert_close(torch.cat((first, second), dim=1), model(source, target), WHOLE_MODEL)
    assert all(layer.k is k and layer.v is v for layer, (k, v) in zip(cache.cross_attention, kept, strict=True))


def test_invalid_cached_calls_are_refused() -> None:
    decoder, full = build(architecture="decoder"), Cache.empty(2)
    decoder.extend(random_tokens(1, 29), full)
    for model, cache, words in (
        (build(architecture="encoder"), Cache.empty(2), "use a decoder"),
        (build(architecture="encoder-decoder"), Cache.empty(2), "memory"),
        (decoder, full, "at most 29 tokens, got 30"),
    ):
        with pytest.raises(InputError, match=words):
            model.extend(random_tokens(1, 1), cache)
