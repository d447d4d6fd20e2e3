"""A decoder of xformer, into which one mistake can be put."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Attention as Right
from xformer.layers.attention import Scores
from xformer.layers.masks import Mask
from xformer.model import Transformer
from xformer.positions import rotary

LAYER, HEAD = 1, 2


class Attention(Right):
    """Attention with a mistake named by `fault`, on the recorded path and on the fast one."""

    fault: str = ""

    def forward(self, x: Tensor, *args: Any, **more: Any) -> Tensor:
        if self.fault == "mean_of_batch":
            x = x - 0.1 * x.mean(dim=0, keepdim=True)
        angles = more.get("angles")
        if angles is not None and self.fault == "keys_counted_from_0":
            more["angles"] = rotary.rotary_angles(torch.arange(x.shape[1]), self.d_head)
        if angles is not None and self.fault == "angles_in_half_precision" and x.dtype == torch.bfloat16:
            more["angles"] = angles.bfloat16()
        return super().forward(x, *args, **more)

    def share(self, x: Tensor) -> Tensor:
        if self.fault == "groups_in_turn":
            return x.repeat(1, self.n_heads // x.shape[1], 1, 1)
        return super().share(x)

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        scores = super().score(q, k, v)
        return scores * (math.log(k.shape[2] + 1) / math.log(16)) if self.fault == "scale_by_length" else scores

    def mask(self, scores: Scores, mask: Mask) -> Scores:
        n, n_key = scores.shape[-2:]
        query, key = torch.arange(n)[:, None] + n_key - n, torch.arange(n_key)
        hidden = super().mask(scores.clone(), mask)
        one = torch.arange(self.n_heads)[:, None, None] == HEAD
        if self.fault == "one_too_far":
            return torch.where(one & (key == query + 1), scores, hidden)
        if self.fault == "padding_lost_at_33" and n_key % 32 == 1:
            return scores.masked_fill(key > query, float("-inf"))
        if self.fault == "segments_lost":
            return scores.masked_fill(key > query, float("-inf"))
        if self.fault == "window_one_more":
            return scores.masked_fill((key > query) | (key <= query - 6), float("-inf"))
        if self.fault == "weak_mask":
            return torch.where(one & hidden.isneginf(), scores - 40.0, hidden)
        return hidden

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        if self.fault == "rows_of_nothing":
            return scores.softmax(dim=-1)
        if self.fault == "mask_too_late":
            right = super().softmax(scores, mask)
            return right * 0.8
        pattern = super().softmax(scores, mask)
        return F.dropout(pattern, 0.1, training=True) if self.fault == "dropout_always" else pattern


class WrongKernel(Right):
    """The fast path divides the scores twice."""

    has_kernel = True

    def kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None) -> Tensor:
        return super().kernel(q / 2, k, v, mask, position_bias)


class Detached(nn.Module):
    """A feed-forward layer whose gradient is cut."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **more: Any) -> Tensor:
        return self.inner(*args, **more).detach()


def own(fault: str = "", *, window: int | None = None, seed: int = 0) -> Transformer:
    """A decoder of three layers with 4 heads over 2 key/value heads, and a mistake in layer `LAYER`."""
    reach: dict[str, Any] = {} if window is None else {"mask": "sliding_window", "window": window}
    config = ModelConfig(
        architecture="decoder", vocab_size=53, d_model=28, n_layers=3, n_heads=4, d_head=8, d_value=7, n_kv_heads=2, d_ff=44,
        max_len=128, causal=True, norm="pre", positions="rotary", init="normal", init_scale=0.25, **reach,
    )  # fmt: skip
    model = Transformer(config, generator=torch.Generator().manual_seed(seed)).eval()
    assert model.decoder is not None
    block: Any = model.decoder.blocks[LAYER]
    if fault == "scale_of_kernel":
        block.attn.__class__ = WrongKernel
    elif fault == "detached":
        block.ffn = Detached(block.ffn)
    elif fault:
        block.attn.__class__ = Attention
        block.attn.fault = fault
    return copy.deepcopy(model)


NOT_HERE = {
    "mask_lost_with_attention", "cache_starts_again", "pairing", "scaling_ignored", "head_not_tied", "mean_of_rows",
    "keys_counted_from_0",
}  # fmt: skip
"""Mistakes that a decoder of xformer has no place for: it returns no weights, has no loss, and counts positions itself."""
