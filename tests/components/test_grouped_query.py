"""Grouped-query attention equals PyTorch's, gradients included, and a cache stores only the shared heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.layers.reference import assert_close, assert_same, build, inputs, model_config, random, randomise
from xformer.errors import ConfigError
from xformer.layers.attention import Attention, Cache
from xformer.layers.masks import LayerMask, causal_mask
from xformer.tape import SILENT, Tape

pytestmark = pytest.mark.usefixtures("float64")


def layer(n_kv_heads: int, *, attention_bias: bool = True) -> Attention:
    """Return attention with six query heads and this many key/value heads."""
    return randomise(Attention(model_config(n_heads=6, n_kv_heads=n_kv_heads, attention_bias=attention_bias)))


def by_hand(attention: Attention, x: Tensor, memory: Tensor) -> Tensor:
    """Compute the same with the per-head matrices and PyTorch's grouped attention."""
    q = torch.einsum("bqm,hmd->bhqd", x, attention.W_Q) + attention.b_Q[:, None]
    k = torch.einsum("bkm,gmd->bgkd", memory, attention.W_K) + attention.b_K[:, None]
    v = torch.einsum("bkm,gmd->bgkd", memory, attention.W_V) + attention.b_V[:, None]
    allowed = causal_mask(x.shape[1], memory.shape[1])
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
    return torch.einsum("bhqd,hdm->bqm", z, attention.W_O) + attention.b_O


@pytest.mark.parametrize("tape", [SILENT, Tape()], ids=["fused", "recorded"])
@pytest.mark.parametrize(("n_kv_heads", "crosses"), [(1, False), (2, True), (3, False)])
def test_equals_pytorchs_grouped_attention(n_kv_heads: int, crosses: bool, tape: Tape) -> None:
    attention, x = layer(n_kv_heads), random(2, 11, 13)
    memory = random(2, 11, 13, seed=1) if crosses else x
    mask = LayerMask(causal=causal_mask(11, 11))
    made = attention(x, memory if crosses else None, mask=mask, tape=tape)
    assert_same(made, by_hand(attention, x, memory), [x, memory, *attention.parameters()])


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_a_cache_stores_only_shared_heads_and_decodes_the_same(architecture: str) -> None:
    model = build(architecture=architecture, n_heads=6, n_kv_heads=2, positions="rotary", norm="pre")
    given, cache = inputs(model), Cache.empty(2)
    memory = model.encode(given[0]) if architecture == "encoder-decoder" else None
    logits = [model.extend(token, cache, memory) for token in given[-1].split(1, dim=1)]
    assert_close(torch.cat(logits, dim=1), model(*given), terms=1000)
    for kept in cache.self_attention:
        assert kept.k is not None
        assert kept.k.shape == (2, 2, 11, 10)


def test_groups_must_divide_the_heads() -> None:
    for n, example in ((5, 3), (12, 6)):
        with pytest.raises(ConfigError, match=f"n_kv_heads must divide n_heads = 6, got {n}.*n_kv_heads={example}"):
            model_config(n_heads=6, n_kv_heads=n)
