"""A typical GPT in plain PyTorch, optionally with one fault.

PlainGPT()                     correct
PlainGPT("mask_too_late")      the fault is in layer `LAYER`, and if a single head can have it, only in head `HEAD`
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYER, HEAD = 1, 2
VOCAB, WIDTH, N_HEADS, N_KV, D_HEAD, N_LAYERS = 53, 28, 4, 2, 7, 3


def turned(x: Tensor, angles: Tensor, fault: str) -> Tensor:
    """Rotate halves: (x₁, x₂) → (x₁ cos − x₂ sin, x₂ cos + x₁ sin); an odd last dimension is unchanged."""
    n = 2 * (x.shape[-1] // 2)
    angles = angles.repeat_interleave(2, dim=-1) if fault == "pairing" else torch.cat([angles, angles], dim=-1)
    cos, sin = angles[:, None].cos().to(x.dtype), angles[:, None].sin().to(x.dtype)  # [batch, 1, pos, width]
    turning, rest = x[..., :n], x[..., n:]
    one, two = turning.chunk(2, dim=-1)
    return torch.cat([turning * cos + torch.cat([-two, one], dim=-1) * sin, rest], dim=-1)


class Attention(nn.Module):
    def __init__(self, fault: str, window: int | None) -> None:
        super().__init__()
        self.fault, self.window = fault, window
        self.flash = False
        self.query = nn.Linear(WIDTH, N_HEADS * D_HEAD, bias=False)
        self.key = nn.Linear(WIDTH, N_KV * D_HEAD, bias=False)
        self.value = nn.Linear(WIDTH, N_KV * D_HEAD, bias=False)
        self.out = nn.Linear(N_HEADS * D_HEAD, WIDTH, bias=False)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        rates = 10000.0 ** (-torch.arange(0, D_HEAD - 1, 2) / (D_HEAD - 1))
        if self.fault == "angles_in_half_precision":
            return positions[..., None].to(dtype) * rates.to(dtype)
        return positions[..., None].float() * rates

    def forward(self, x: Tensor, allowed: Tensor, positions: Tensor, past: Any, with_attention: bool) -> Any:
        n, fault = x.shape[1], self.fault
        q, k, v = (
            layer(x).unflatten(-1, (-1, D_HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )  # [batch, head, pos, d_head]
        counted = torch.arange(n)[None].expand_as(positions)
        q = turned(q, self.angles(positions, x.dtype), fault)
        k = turned(k, self.angles(counted if fault == "keys_counted_from_0" else positions, x.dtype), fault)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        kept, group = (k, v), N_HEADS // N_KV
        if fault == "groups_in_turn":
            k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        else:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        n_key = k.shape[2]
        query, key = torch.arange(n)[:, None] + n_key - n, torch.arange(n_key)
        allowed = allowed.expand(-1, N_HEADS, -1, -1).clone()
        if fault == "one_too_far":
            allowed[:, HEAD] |= key == query + 1
        if fault == "mask_lost_with_attention" and with_attention:
            allowed = torch.ones_like(allowed)
        if fault == "padding_lost_at_33" and n_key % 32 == 1:
            allowed = (key <= query).expand_as(allowed)
        if self.window is not None:
            reach = self.window + (1 if fault == "window_one_more" else 0)
            allowed = allowed & (key > query - reach)
        scale = 1 / math.sqrt(D_HEAD)
        if fault == "scale_by_length":
            scale *= math.log(n_key + 1) / math.log(16)
        if self.flash:
            scale = scale / 2 if fault == "scale_of_kernel" else scale
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
            return self.out(z.transpose(1, 2).flatten(2)), kept, None
        scores = q @ k.transpose(-2, -1) * scale
        lowest = float("-inf") if fault == "rows_of_nothing" else torch.finfo(x.dtype).min
        if fault == "weak_mask":
            scores[:, HEAD] = torch.where(allowed[:, HEAD], scores[:, HEAD], scores[:, HEAD] - 40.0)
            allowed[:, HEAD] = True
        if fault == "mask_too_late":
            pattern = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)
        else:
            pattern = scores.masked_fill(~allowed, lowest).softmax(dim=-1)
        if fault == "dropout_always":
            pattern = F.dropout(pattern, 0.1, training=True)
        z = pattern @ v
        return self.out(z.transpose(1, 2).flatten(2)), kept, pattern


class Block(nn.Module):
    def __init__(self, fault: str, window: int | None) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(fault, window)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, *more: Any) -> Any:
        if self.fault == "mean_of_batch":
            x = x - 0.1 * x.mean(dim=0, keepdim=True)
        made, kept, pattern = self.attention(self.norm1(x), *more)
        x = x + made
        made = self.mlp(self.norm2(x))
        return x + (made.detach() if self.fault == "detached" else made), kept, pattern


class PlainGPT(nn.Module):
    def __init__(self, fault: str = "", *, window: int | None = None, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.fault, self.window = fault, window
        self.config = SimpleNamespace(max_position_embeddings=128, tie_word_embeddings=True, sliding_window=window)
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(fault if i == LAYER else "", window) for i in range(N_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for module in self.modules():  # larger than usual, so that attention is not uniform
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.4)
        if fault != "head_not_tied":
            self.head.weight = self.embedding.weight

    def forward(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        labels: Tensor | None = None,
    ) -> Any:
        batch, n = idx.shape
        start = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None:
            first = 0 if self.fault == "cache_starts_again" else start
            position_ids = torch.arange(first, first + n)[None].expand(batch, -1)
        elif self.fault == "cache_starts_again" and start:
            position_ids = position_ids - start
        n_key = start + n
        query, key = torch.arange(n)[:, None] + start, torch.arange(n_key)
        allowed = (key <= query).expand(batch, 1, n, n_key)
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None, :]
        segments = torch.zeros_like(idx) if segment_ids is None else segment_ids
        same = segments[:, None, :, None] == segments[:, None, None, :]
        x, kept, patterns = self.embedding(idx), [], []
        for number, block in enumerate(self.blocks):
            own = allowed
            if past_key_values is None and not (self.fault == "segments_lost" and number == LAYER):
                own = allowed & same
            past = None if past_key_values is None else past_key_values[number]
            x, pair, pattern = block(x, own, position_ids, past, output_attentions)
            kept.append(pair)
            patterns.append(pattern)
        logits = self.head(self.norm(x))
        loss = None if labels is None else self.loss(logits[:, :-1], labels[:, 1:])
        return SimpleNamespace(
            logits=logits,
            loss=loss,
            past_key_values=kept if use_cache else None,
            attentions=patterns if output_attentions else None,
        )

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.fault == "mean_of_rows":
            return torch.stack([F.cross_entropy(one, own) for one, own in zip(logits, labels, strict=True)]).mean()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one_too_far": ("causality", {"head": HEAD, "cell": lambda query, key: key == query + 1}),
    "mask_lost_with_attention": ("causality_with_attention", {"cell": lambda query, key: key > query}),
    "scale_of_kernel": ("backends", {}),
    "padding_lost_at_33": ("left_padding", {"cell": lambda _, key: key < 27}),  # 6 tokens after 27 pads
    "scale_by_length": ("right_padding", {}),
    "mean_of_batch": ("batch", {}),
    "cache_starts_again": ("cache", {"layer": None}),
    "segments_lost": ("packing", {"cell": lambda query, key: key < 5 <= query}),  # the first document has 5 tokens
    "keys_counted_from_0": ("position_shift", {}),
    "pairing": ("rotary", {}),
    "angles_in_half_precision": ("precision", {}),
    "window_one_more": ("window", {"cell": lambda query, key: query - key == 5}),
    "groups_in_turn": ("key_value_groups", {"head": 1}),  # of heads 0 to 3 in two groups, 1 and 2 read the wrong one
    "head_not_tied": ("tied_weights", {"layer": None}),
    "rows_of_nothing": ("masked_row", {}),
    "weak_mask": ("mask_constant", {"head": HEAD, "cell": lambda query, key: key > query}),
    "detached": ("gradients", {}),
    "mean_of_rows": ("accumulation", {"layer": None}),
    "dropout_always": ("determinism", {}),
    "mask_too_late": ("attention_rows", {}),
    "rows_of_queries_moved": ("conversion", {}),
    "first_token_twice": ("special_tokens", {"layer": None}),
}
"""The check that finds each fault, and its location: layer `LAYER` unless given, and the head and cell if it has them."""
OPTIONS: dict[str, dict[str, Any]] = {"window_one_more": {"window": 5}}
