"""A decoder of xformer, into which one mistake can be put."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from xformer.config import ModelConfig
from xformer.layers.attention import Attention as Right
from xformer.layers.attention import Scores
from xformer.layers.masks import Mask
from xformer.model import Transformer

LAYER, HEAD = 1, 2


class Attention(Right):
    """Attention with a mistake named by `fault`, on the recorded path and on the fast one."""

    fault: str = ""

    def forward(self, x: Tensor, *args: Any, **more: Any) -> Tensor:
        angles = more.get("angles")
        if angles is not None and self.fault == "angles_in_half_precision" and x.dtype == torch.bfloat16:
            more["angles"] = angles.bfloat16()
        return super().forward(x, *args, **more)

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
        return hidden


class WrongKernel(Right):
    """The fast path divides the scores twice."""

    has_kernel = True

    def kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None) -> Tensor:
        return super().kernel(q / 2, k, v, mask, position_bias)


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
    elif fault:
        block.attn.__class__ = Attention
        block.attn.fault = fault
    return copy.deepcopy(model)


HERE = {"scale_of_kernel", "padding_lost_at_33", "segments_lost", "angles_in_half_precision"}
"""The mistakes that are planted here: those for which the checks treat our models in a way of their own."""
