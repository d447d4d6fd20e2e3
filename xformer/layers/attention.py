"""Multi-head attention (Vaswani et al. 2017, §3.2), in ways that tests hold equal.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_head) V                                         (equation 1)
    MultiHead(X, Y)    = concat(head₁ … headₕ) W_O,   headᵢ = Attention(X W_Qᵢ, Y W_Kᵢ, Y W_Vᵢ)

Watched by a tape, every intermediate of the equations exists and can be changed. Unwatched, one fused kernel does it; and
where a small model is trained on a CPU, `fused.self_attention`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers import fused
from xformer.layers.cache import LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.masks import NO_MASK, Mask, masked_softmax
from xformer.tape import SILENT, AnyTape


class Attention(nn.Module):
    """Attention from `x` (queries) to `memory` (keys and values); self-attention is the case memory = x.

    The rows of `weight_in` are q, k, v one after the other, so that self-attention multiplies once.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.d_value = config.n_heads, config.d_head, config.d_value
        self.positions = config.position_kind
        self.rows = [config.n_heads * width for width in (config.d_head, config.d_head, config.d_value)]
        self.weight_in = nn.Parameter(torch.empty(sum(self.rows), config.d_model))
        self.weight_out = nn.Parameter(torch.empty(config.d_model, self.rows[2]))
        self.bias_in = nn.Parameter(torch.empty(sum(self.rows))) if config.attention_bias else None
        self.bias_out = nn.Parameter(torch.empty(config.d_model)) if config.attention_bias else None

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        *,
        mask: Mask = NO_MASK,
        angles: Float[Tensor, "*batch pos half"] | None = None,
        position_bias: Float[Tensor, "#batch head query key"] | None = None,
        tape: AnyTape = SILENT,
        dropout: Dropout = NO_DROPOUT,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Mix `memory` into each query.

        `angles` turn q and k, `position_bias` is added to the scores (`xformer.positions`); `cache` holds earlier keys.
        """
        watched = tape.recording or dropout.applies("attention")
        plain = memory is None and angles is None and position_bias is None and cache is None
        if plain and not watched and self.d_head == self.d_value and fused.pays_for(x):
            return self._by_hand(x, mask)
        x = tape("in", x)
        q, k, v = self._project(x, memory, cache)  # [batch, head, pos, d_head] (v: d_value)
        if angles is not None:
            angles = tape("pos_angles", angles)
            q, k = self.positions.turn(q, angles), self.positions.turn(k, angles)
        if cache is not None:
            k, v = cache.extend(k, v)
        if watched:
            z = self._equation(q, k, v, mask, position_bias, tape, dropout)
        else:
            z = self._fused(q, k, v, mask, position_bias)
        joined = z.transpose(1, 2).flatten(-2)  # [batch, query, head·d_value]
        return tape("out", F.linear(joined, self.weight_out, self.bias_out))

    def _by_hand(self, x: Tensor, mask: Mask) -> Float[Tensor, "batch query d_model"]:
        """The same numbers, with a gradient that is derived by hand."""
        return fused.self_attention(
            x,
            self.weight_in,
            self.bias_in,
            self.weight_out,
            self.bias_out,
            n_heads=self.n_heads,
            mask=mask.additive(x.dtype),
            empty_rows=mask.empty_rows,
        )

    def _project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        """q from x; k and v from memory (from x where there is none), split into heads."""
        if memory is None:
            q, k, v = F.linear(x, self.weight_in, self.bias_in).split(self.rows, dim=-1)  # [batch, pos, head·d_head]
            return self._split(q), self._split(k), self._split(v)
        n_q = self.rows[0]
        b_q, b_kv = (None, None) if self.bias_in is None else (self.bias_in[:n_q], self.bias_in[n_q:])
        q = self._split(F.linear(x, self.weight_in[:n_q], b_q))
        if cache is not None and cache.frozen:  # the memory does not grow: its keys and values are computed once
            return q, cache.nothing(q), cache.nothing(q)
        k, v = F.linear(memory, self.weight_in[n_q:], b_kv).split(self.rows[1:], dim=-1)
        return q, self._split(k), self._split(v)

    def _split(self, x: Float[Tensor, "batch pos features"]) -> Float[Tensor, "batch head pos width"]:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def _equation(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch head key d_head"],
        v: Float[Tensor, "batch head key d_value"],
        mask: Mask,
        position_bias: Float[Tensor, "#batch head query key"] | None,
        tape: AnyTape,
        dropout: Dropout,
    ) -> Float[Tensor, "batch head query d_value"]:
        """Equation 1, step by step."""
        q, k, v = tape("q", q), tape("k", k), tape("v", v)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)  # [batch, head, query, key]
        if position_bias is not None:
            scores = scores + tape("pos_bias", position_bias)
        allowed = self._allowed(mask, scores, tape)  # [batch, head, query, key]
        scores = tape("scores", scores.masked_fill(~allowed, float("-inf")))
        pattern = tape("pattern", masked_softmax(scores, allowed & ~scores.isneginf()))  # rows sum to 1
        pattern = dropout("attention", pattern)
        return tape("z", pattern @ v)  # [batch, head, query, d_value]

    def _allowed(self, mask: Mask, scores: Tensor, tape: AnyTape) -> Tensor:
        """The mask as one boolean; causality passes the tape on its own, so that it can be lifted or imposed."""
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)  # [query, key]
        if mask.is_ordered:
            allowed = tape("causal", allowed if mask.causal is None else mask.causal)
        allowed = allowed[None, None] if mask.layout is None else allowed & mask.layout
        return tape("mask", allowed.expand(scores.shape))

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None
    ) -> Float[Tensor, "batch head query d_value"]:
        """The same numbers from PyTorch's fused kernel, without leaving any intermediate behind."""
        if position_bias is None and mask.is_plain_causal:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        bias = mask.additive(q.dtype)
        if position_bias is not None:
            position_bias = position_bias.to(q.dtype)
            bias = position_bias if bias is None else bias + position_bias
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return z if mask.empty_rows is None else z.masked_fill(mask.empty_rows, 0.0)

    # Each head's own matrices, as the paper writes them: views of the storage above, readable and writable.

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:
        return self._heads(0)

    @property
    def W_K(self) -> Float[Tensor, "head d_model d_head"]:
        return self._heads(1)

    @property
    def W_V(self) -> Float[Tensor, "head d_model d_value"]:
        return self._heads(2)

    @property
    def W_O(self) -> Float[Tensor, "head d_value d_model"]:
        return self.weight_out.T.unflatten(0, (self.n_heads, self.d_value))

    @property
    def b_Q(self) -> Float[Tensor, "head d_head"] | None:
        return self._head_biases(0)

    @property
    def b_K(self) -> Float[Tensor, "head d_head"] | None:
        return self._head_biases(1)

    @property
    def b_V(self) -> Float[Tensor, "head d_value"] | None:
        return self._head_biases(2)

    @property
    def b_O(self) -> Float[Tensor, " d_model"] | None:
        return self.bias_out

    def _heads(self, which: int) -> Tensor:
        return self.weight_in.split(self.rows)[which].unflatten(0, (self.n_heads, -1)).transpose(1, 2)

    def _head_biases(self, which: int) -> Tensor | None:
        return None if self.bias_in is None else self.bias_in.split(self.rows)[which].unflatten(0, (self.n_heads, -1))
