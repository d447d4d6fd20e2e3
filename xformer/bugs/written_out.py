"""Attention written out in four steps, watched or not, so that a bug can be one step done wrongly.

    S = score(Q, K),   S′ = hide(S, allowed),   A = weigh(S′, allowed),   Z = A V

Done rightly, as here, it is `Attention` to the last bit of what a tape records; a test holds the two equal. The fused paths
of `Attention` are left out, because they know nothing of the steps.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.layers.attention import Attention
from xformer.layers.cache import LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.masks import NO_MASK, Mask, masked_softmax
from xformer.tape import SILENT, AnyTape

Scores = Float[Tensor, "batch head query key"]
Allowed = Bool[Tensor, "batch head query key"]


class WrittenOut(Attention):
    """Softmax attention as it should be, one overridable method a step."""

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
        """Mix `memory` into each query; the arguments are those of `Attention`."""
        x = tape("in", x)
        q, k, v = self._project(x, memory, cache)  # [batch, head, pos, d_head] (v: d_value)
        if angles is not None:
            angles = tape("pos_angles", angles)
            q, k = self.positions.turn(q, angles), self.positions.turn(k, angles)
        if cache is not None:
            k, v = cache.extend(k, v)
        z = self._equation(q, k, v, mask, position_bias, tape, dropout)
        joined = z.transpose(1, 2).flatten(-2)  # [batch, query, head·d_value]
        return tape("out", F.linear(joined, self.weight_out, self.bias_out))

    def _equation(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        position_bias: Tensor | None,
        tape: AnyTape,
        dropout: Dropout,
    ) -> Float[Tensor, "batch head query d_value"]:
        q, k, v = tape("q", q), tape("k", k), tape("v", v)
        scores = self.score(q, k, v)  # [batch, head, query, key]
        if position_bias is not None:
            scores = scores + tape("pos_bias", position_bias)
        allowed = self._allowed(mask, scores, tape)  # [batch, head, query, key]
        scores = tape("scores", self.hide(scores, allowed))
        pattern = tape("pattern", self.weigh(scores, allowed))
        pattern = dropout("attention", pattern)
        return tape("z", self.mix(pattern, k, v))

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        """Q Kᵀ / √d_head."""
        return q @ k.transpose(-2, -1) / math.sqrt(self.d_head)

    def hide(self, scores: Scores, allowed: Allowed) -> Scores:
        """−∞ wherever looking is forbidden."""
        return scores.masked_fill(~allowed, float("-inf"))

    def weigh(self, scores: Scores, allowed: Allowed) -> Scores:
        """softmax over the keys; a query that may look at nothing gets zeros."""
        return masked_softmax(scores, allowed & ~scores.isneginf())

    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """A V."""
        return pattern @ v
