"""Multi-head attention (Vaswani et al. 2017, §3.2) as a sequence of replaceable steps, and its key/value cache.

    project    Q, K, V = X W_Q, Y W_K, Y W_V       for each head; self-attention has Y = X
    share      K, V of each group repeated for its query heads (grouped-query attention)
    score      S = Q Kᵀ / √d_head
    allow      which keys each query may attend to
    mask       S = −∞ elsewhere
    softmax    A = softmax(S) over the keys
    mix        Z = A V
    out        Y = concat(Z₁ … Zₕ) W_O

A subclass can replace a step; a tape records and edits the result of each step. Without either, one PyTorch kernel computes
`score` to `mix` at once, equal up to rounding. In decoding, the keys and values of earlier positions are kept in a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.masks import NO_MASK, LayerMask, masked_softmax
from xformer.tape import SILENT, AnyTape

Scores = Float[Tensor, "batch head query key"]


class Attention(nn.Module):
    """Attention from `x` (queries) to `memory` (keys and values); self-attention if there is no memory.

    The rows of `weight_in` are those of q, k and v, concatenated, so that self-attention needs one matrix product.
    """

    has_kernel: ClassVar[bool] = True
    """Whether `kernel` is equivalent to the steps; False in a subclass that does not define its own kernel."""

    def __init_subclass__(cls) -> None:
        cls.has_kernel = "kernel" in vars(cls)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.d_value = config.n_heads, config.d_head, config.d_value
        self.n_kv_heads = config.kv_component.n_kv_heads(config)
        self.positions = config.position_kind
        self.kv = config.kv_component
        self.rows = self.kv.widths(config)
        self.weight_in = nn.Parameter(torch.empty(sum(self.rows), config.d_model))
        self.weight_out = nn.Parameter(torch.empty(config.d_model, config.n_heads * config.d_value))
        self.bias_in = nn.Parameter(torch.empty(sum(self.rows))) if config.attention_bias else None
        self.bias_out = nn.Parameter(torch.empty(config.d_model)) if config.attention_bias else None

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        *,
        mask: LayerMask = NO_MASK,
        angles: Float[Tensor, "*batch pos half"] | None = None,
        position_bias: Float[Tensor, "#batch head query key"] | None = None,
        tape: AnyTape = SILENT,
        dropout: Dropout = NO_DROPOUT,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Compute attention.

        `angles` rotate q and k, and `position_bias` is added to the scores (`xformer.positions`); `cache` has the earlier keys
        and values.
        """
        x = tape("in", x)
        q, k, v = self.project(x, memory, cache)
        if angles is not None:
            angles = tape("pos_angles", angles)
            q, k = self.positions.rotate(q, angles), self.positions.rotate(k, angles)
        if cache is not None:
            k, v = cache.extend(k, v)
        k, v = self.share(k), self.share(v)
        if self.has_kernel and not tape.recording and not dropout.applies("attention"):
            z = self.kernel(q, k, v, mask, position_bias)
        else:
            z = self._step_by_step(q, k, v, mask, position_bias, tape, dropout)
        return tape("out", self.out(z))

    def _step_by_step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: LayerMask,
        position_bias: Tensor | None,
        tape: AnyTape,
        dropout: Dropout,
    ) -> Float[Tensor, "batch head query d_value"]:
        q, k, v = tape("q", q), tape("k", k), tape("v", v)
        scores = self.score(q, k, v)
        if position_bias is not None:
            scores = scores + tape("pos_bias", position_bias)
        mask = self.allow(mask, scores, tape)
        scores = self.mask(scores, mask)
        if (changed := tape("scores", scores)) is not scores:
            scores, mask = changed, mask.only(~changed.isneginf())
        pattern = tape("pattern", self.softmax(scores, mask))
        return tape("z", self.mix(dropout("attention", pattern), k, v))

    # ── the steps ──

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project q [batch, head, query, d_head] from x, and k and v [batch, kv_head, key, …] from memory, or x without it."""
        if memory is None:
            q, k, v = F.linear(x, self.weight_in, self.bias_in).split(self.rows, dim=-1)  # [batch, pos, head·d_head]
            return self.split(q), self.split(k, self.n_kv_heads), self.split(v, self.n_kv_heads)
        n_q = self.rows[0]
        b_q, b_kv = (None, None) if self.bias_in is None else (self.bias_in[:n_q], self.bias_in[n_q:])
        q = self.split(F.linear(x, self.weight_in[:n_q], b_q))
        if cache is not None and (kept := cache.kept_for_good) is not None:
            return q, *kept
        k, v = F.linear(memory, self.weight_in[n_q:], b_kv).split(self.rows[1:], dim=-1)
        return q, self.split(k, self.n_kv_heads), self.split(v, self.n_kv_heads)

    def split(
        self, x: Float[Tensor, "batch pos features"], n_heads: int | None = None
    ) -> Float[Tensor, "batch head pos width"]:
        """Split the features into heads; `n_heads` defaults to the number of query heads."""
        return x.unflatten(-1, (n_heads or self.n_heads, -1)).transpose(1, 2)

    def share(self, x: Float[Tensor, "batch kv_head pos width"]) -> Float[Tensor, "batch head pos width"]:
        """Return keys or values for each query head; heads of one group share them."""
        return self.kv.expand(x, self.n_heads)

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        """Compute Q Kᵀ / √d_head; Q is divided, since it is smaller than the scores."""
        return (q / math.sqrt(self.d_head)) @ k.transpose(-2, -1)

    def allow(self, mask: LayerMask, scores: Scores, tape: AnyTape) -> LayerMask:
        """Pass the mask through the tape; the causal part is a separate activation, so that it can be removed or imposed."""
        if not tape.recording:
            return mask
        everything = torch.ones((), dtype=torch.bool, device=scores.device)
        if mask.is_ordered:
            causal = everything.expand(scores.shape[-2:]) if mask.causal is None else mask.causal
            if (changed := tape("causal", causal)) is not causal:
                mask = replace(mask, causal=changed, rows_may_be_empty=True)
        allowed = (everything if mask.allowed is None else mask.allowed).expand(scores.shape)
        changed = tape("mask", allowed)
        return mask if changed is allowed else LayerMask(layout=changed, rows_may_be_empty=True)

    def mask(self, scores: Scores, mask: LayerMask) -> Scores:
        """Set the scores of masked keys to −∞."""
        return mask.hide(scores)

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        """Return weights over the keys that sum to 1; zeros for a query without any permitted key."""
        return masked_softmax(scores, mask.empty_rows)

    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """A V."""
        return pattern @ v

    def out(self, z: Float[Tensor, "batch head query d_value"]) -> Float[Tensor, "batch query d_model"]:
        """Concatenate the heads and project them to the width of the stream."""
        return F.linear(z.transpose(1, 2).flatten(-2), self.weight_out, self.bias_out)

    def kernel(
        self, q: Tensor, k: Tensor, v: Tensor, mask: LayerMask, position_bias: Tensor | None
    ) -> Float[Tensor, "batch head query d_value"]:
        """Compute `score` to `mix` in one fused kernel: training steps of small models are 1.2 times as fast."""
        if position_bias is None and mask.is_plain_causal:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        allowed, bias = mask.allowed_or_empty, position_bias
        if bias is not None:
            bias = bias.to(q.dtype) if allowed is None else bias.to(q.dtype).masked_fill(~allowed, float("-inf"))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed if bias is None else bias)
        return z if mask.empty_rows is None else z.masked_fill(mask.empty_rows, 0.0)

    # Each head's matrices, in the paper's notation: writable views of the parameters above.

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:
        return self._heads(0)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:
        return self._heads(1)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_value"]:
        return self._heads(2)

    @property
    def W_O(self) -> Float[Tensor, "head d_value d_model"]:
        return self.weight_out.T.unflatten(0, (self.n_heads, self.d_value))

    @property
    def b_Q(self) -> Float[Tensor, "head d_head"] | None:
        return self._head_biases(0)

    @property
    def b_K(self) -> Float[Tensor, "kv_head d_head"] | None:
        return self._head_biases(1)

    @property
    def b_V(self) -> Float[Tensor, "kv_head d_value"] | None:
        return self._head_biases(2)

    @property
    def b_O(self) -> Float[Tensor, " d_model"] | None:
        return self.bias_out

    def _heads(self, which: int) -> Tensor:
        n_heads = self.n_kv_heads if which else self.n_heads
        return self.weight_in.split(self.rows)[which].unflatten(0, (n_heads, -1)).transpose(1, 2)

    def _head_biases(self, which: int) -> Tensor | None:
        n_heads = self.n_kv_heads if which else self.n_heads
        return None if self.bias_in is None else self.bias_in.split(self.rows)[which].unflatten(0, (n_heads, -1))


@dataclass
class LayerCache:
    """The keys and values of one attention layer so far; for cross-attention, filled once and then only read."""

    k: Float[Tensor, "batch kv_head key d_head"] | None = None
    v: Float[Tensor, "batch kv_head key d_value"] | None = None
    is_cross: bool = False

    @property
    def kept_for_good(self) -> tuple[Tensor, Tensor] | None:
        """The keys and values of cross-attention, which never change; None for self-attention or before the first call."""
        return None if not self.is_cross or self.k is None or self.v is None else (self.k, self.v)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new positions, and return all keys and values."""
        if self.k is None or self.v is None:
            self.k, self.v = k, v
        elif not self.is_cross:
            self.k, self.v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        return self.k, self.v


@dataclass
class Cache:
    """The caches of all layers during one decoding; owned by the caller of `Transformer.extend`."""

    self_attention: list[LayerCache] = field(default_factory=list)
    cross_attention: list[LayerCache] = field(default_factory=list)
    length: int = 0

    @classmethod
    def empty(cls, n_layers: int) -> Cache:
        cross = [LayerCache(is_cross=True) for _ in range(n_layers)]
        return cls([LayerCache() for _ in range(n_layers)], cross)
