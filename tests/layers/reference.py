"""References for the layer tests: equations by hand, our weights under PyTorch's names, and one tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.feed_forward import FeedForwardLayer, NormLayer
from xformer.layers.stack import Block, CrossBlock
from xformer.model import Transformer
from xformer.positions import POSITION_KINDS

M = TypeVar("M", bound=nn.Module)

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")
POSITIONS = tuple(POSITION_KINDS)
FITTING = [(a, p) for a in ARCHITECTURES for p in POSITIONS if a == "encoder" or p != "mirror"]
"""Decoders have no positions counted from the end, which would reveal the length of the answer."""
BY_TURNS = [(ARCHITECTURES[n % 3] if p != "mirror" else "encoder", p) for n, p in enumerate(POSITIONS)]
"""Each position encoding once, and each architecture at least twice."""

# Primes, except d_head = 2 · 5, since rotary positions need pairs. No size divides another; d_head and d_value are independent.
SIZES: dict[str, Any] = {
    "architecture": "encoder", "vocab_size": 23, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 10, "d_value": 7,
    "d_ff": 17, "max_len": 29, "attention_bias": True,
}  # fmt: skip
# PyTorch's layers support only d_head = d_value = d_model / n_heads.
TORCH_SIZES: dict[str, Any] = SIZES | {"d_model": 15, "d_head": 5, "d_value": 5}

# Two ways of summing n products differ by at most n · eps · Σ|aᵢbᵢ| ≤ n² · eps · max|aᵢbᵢ| (Higham 2002, §3.1).
# n is the number of terms along the longest path. One layer has d_model + d_head + keys + heads·d_value + d_ff < 100, the
# gradient as many again, plus sums over batch and positions. A whole model has up to 2 stacks of 2 such layers.
ONE_LAYER = 250
WHOLE_MODEL = 1000


def tolerance(expected: Tensor, terms: int) -> float:
    """Return the largest difference that rounding can explain: about 1e-11 for a layer, 2e-10 for a model, in float64."""
    scale = float(expected.detach().abs().max()) if expected.numel() else 0.0
    return terms**2 * torch.finfo(expected.dtype).eps * max(1.0, scale)


def assert_close(actual: Tensor, expected: Tensor, terms: int = ONE_LAYER) -> None:
    """Assert equality up to rounding."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance(expected, terms))


def assert_same(actual: Tensor, expected: Tensor, leaves: Sequence[Tensor], terms: int = ONE_LAYER) -> None:
    """Assert equal values and equal gradients of every leaf; both must use every leaf."""
    assert_close(actual, expected, terms)
    upstream = torch.randn(actual.shape, generator=torch.Generator().manual_seed(7))
    ours = torch.autograd.grad(actual, list(leaves), upstream, retain_graph=True)
    theirs = torch.autograd.grad(expected, list(leaves), upstream, retain_graph=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other, terms)


def model_config(**changes: Any) -> ModelConfig:
    """Return a small configuration of prime sizes, with the given changes."""
    return ModelConfig(**(SIZES | changes))


def randomise(module: M, seed: int = 0) -> M:
    """Give every parameter random values, because a bias of 0 or a gain of 1 could hide a bug."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    return module


def build(seed: int = 0, **changes: Any) -> Transformer:
    """Return a model of `model_config(**changes)` with random parameters."""
    return randomise(Transformer(model_config(**changes)), seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed numbers that require a gradient."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def random_tokens(n_batch: int, n_pos: int, seed: int = 0) -> Tensor:
    """Return random tokens 1 to 22; 0 is padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, SIZES["vocab_size"], (n_batch, n_pos), generator=generator)


def inputs(model: Transformer, n_batch: int = 2, n_pos: int = 11, n_source: int = 5, seed: int = 0) -> list[Tensor]:
    """Return inputs for a model: tokens, or source and target."""
    tokens = random_tokens(n_batch, n_pos, seed)
    if model.config.architecture != "encoder-decoder":
        return [tokens]
    return [random_tokens(n_batch, n_source, seed + 1), tokens]


def under(prefix: str, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prefix the names."""
    return {f"{prefix}.{name}": value for name, value in names.items()}


def named_attention(attention: Attention) -> dict[str, Tensor]:
    """Return our parameters under the names of `nn.MultiheadAttention`, for `torch.func.functional_call`."""
    names: dict[str, Tensor] = {"in_proj_weight": attention.weight_in, "out_proj.weight": attention.weight_out}
    if attention.bias_in is not None and attention.bias_out is not None:
        names |= {"in_proj_bias": attention.bias_in, "out_proj.bias": attention.bias_out}
    return names


def named_feed_forward(ffn: FeedForwardLayer, first: str, second: str) -> dict[str, Any]:
    """Return our feed-forward parameters as two `nn.Linear` layers of these names."""
    linears = {first: (ffn.weight_in, ffn.bias_in), second: (ffn.weight_out, ffn.bias_out)}
    named = (zip((f"{name}.weight", f"{name}.bias"), of, strict=True) for name, of in linears.items())
    return dict(chain.from_iterable(named))


def named_norm(norm: NormLayer) -> dict[str, Any]:
    """Return our norm's parameters under the names of `nn.LayerNorm`."""
    return {"weight": norm.weight, "bias": norm.bias}


def named_block(block: Block) -> dict[str, Tensor]:
    """Return our layer's parameters under the names of `nn.TransformerEncoderLayer`."""
    names = under("self_attn", named_attention(block.attn)) | named_feed_forward(block.ffn, "linear1", "linear2")
    norms = (block.attn_residual.norm, block.ffn_residual.norm)
    return names | under("norm1", named_norm(norms[0])) | under("norm2", named_norm(norms[1]))


def named_cross_block(block: CrossBlock) -> dict[str, Tensor]:
    """Return our layer's parameters under the names of `nn.TransformerDecoderLayer`."""
    names = under("self_attn", named_attention(block.self_attn))
    names |= under("multihead_attn", named_attention(block.cross_attn))
    for n, residual in enumerate((block.self_attn_residual, block.cross_attn_residual, block.ffn_residual), start=1):
        names |= under(f"norm{n}", named_norm(residual.norm))
    return names | named_feed_forward(block.ffn, "linear1", "linear2")


def softmax_by_hand(scores: Tensor) -> Tensor:
    """Compute exp(s) / Σ exp(s) over the last axis; a row of only -inf becomes zeros."""
    weights = torch.where(scores.isneginf(), torch.zeros_like(scores), scores.exp())
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total > 0, total, torch.ones_like(total))


def attention_by_hand(
    attention: Attention, x: Tensor, memory: Tensor, allowed: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Compute equation 1 of the paper head by head, with each head's matrices; `allowed` is [batch, head, query, key]."""
    out = torch.zeros(x.shape) if attention.b_O is None else attention.b_O.expand(x.shape)
    for head in range(attention.n_heads):
        q, k, v = x @ attention.W_Q[head], memory @ attention.W_K[head], memory @ attention.W_V[head]
        if attention.b_Q is not None and attention.b_K is not None and attention.b_V is not None:
            q, k, v = q + attention.b_Q[head], k + attention.b_K[head], v + attention.b_V[head]
        scores = (q[:, :, None, :] * k[:, None, :, :]).sum(dim=-1) / attention.d_head**0.5  # [batch, query, key]
        if bias is not None:
            scores = scores + bias[head]
        if allowed is not None:
            scores = torch.where(allowed[:, head], scores, torch.full_like(scores, float("-inf")))
        out = out + softmax_by_hand(scores) @ v @ attention.W_O[head]
    return out
