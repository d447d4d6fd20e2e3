"""The attention of `torch.nn.MultiheadAttention`, written out in its place: projections, scores, pattern, z and the way back.

PyTorch computes it in one function; while a run is watched this stands for it, so that every step can be read and changed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.adapters.attend import Terms

Attend = Callable[[Tensor, Tensor, Tensor, Terms], tuple[Tensor, Tensor]]
"""From q, k and v [batch, head, pos, d_head] to z and the pattern."""


def can_be_written_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call uses nothing beyond the paper: no extra keys, nothing given ready-made."""
    given = _named(args, kwargs)
    unusual = ("bias_k", "bias_v", "static_k", "static_v")
    return all(given.get(name) is None for name in unusual) and not given.get("add_zero_attn")


def multi_head_attention(attend: Attend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """What `F.multi_head_attention_forward` returns for the same call, with dropout idle."""
    given = _named(args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]  # [pos, batch, d_model]
    is_batched = query.dim() == 3
    if not is_batched:
        query, key, value = (x[:, None] for x in (query, key, value))
    n_heads, d_model = given["num_heads"], query.shape[-1]
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (n_heads, -1)).permute(1, 2, 0, 3)  # [batch, head, pos, d_head]
        for x, weight, bias in zip((query, key, value), *_projections(given, d_model), strict=True)
    )
    added = _mask(given, n_heads, q)
    is_causal = added is not None and q.shape[-2] == k.shape[-2] and not bool((added > -math.inf).triu(1).any())
    z, pattern = attend(q, k, v, Terms(scale=1 / math.sqrt(q.shape[-1]), added=added, is_causal=is_causal))
    out = F.linear(
        z.permute(2, 0, 1, 3).flatten(2), given["out_proj_weight"], given["out_proj_bias"]
    )  # [pos, batch, d_model]
    if not given["need_weights"]:
        return (out if is_batched else out[:, 0]), None
    shown = pattern.mean(dim=1) if given["average_attn_weights"] else pattern
    return (out if is_batched else out[:, 0]), (shown if is_batched else shown[0])


def _projections(given: dict[str, Any], d_model: int) -> tuple[list[Tensor], list[Tensor | None]]:
    bias = given["in_proj_bias"]
    biases: list[Tensor | None] = [None] * 3 if bias is None else list(bias.chunk(3))
    if given["use_separate_proj_weight"]:
        return [given[f"{name}_proj_weight"] for name in "qkv"], biases
    return list(given["in_proj_weight"].split(d_model)), biases


def _mask(given: dict[str, Any], n_heads: int, q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores [batch, head or 1, query, key]."""
    total: Tensor | None = None
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    if mask is not None:
        total = _additive(mask, q)
        total = total.unflatten(0, (-1, n_heads)) if total.dim() == 3 else total[None, None]
    if padding is not None:
        ends = _additive(padding, q)
        ends = (ends if ends.dim() == 2 else ends[None])[:, None, None]
        total = ends if total is None else total + ends
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


@cache
def _signature() -> inspect.Signature:
    return inspect.signature(F.multi_head_attention_forward)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = _signature().bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
