"""Faults of released libraries, rebuilt at small size: each model as it was, and as it is after the fix.

Decoder(attention=...)     the attention of each layer is a function of the model, its queries, keys and values, and the masks

The names are those of the issues and pull requests in which the faults were published. transformers #45820 is left out: its
text was not available.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCAB, D, H, N_LAYERS, WINDOW = 53, 24, 3, 2, 6


class Masks(NamedTuple):
    """What an attention may hide."""

    causal: Tensor
    """[query, key], true for keys that are not later."""
    valid: Tensor | None
    """[batch, key], true for tokens."""

    @property
    def allowed(self) -> Tensor:
        return self.causal if self.valid is None else self.causal & self.valid[:, None, None]


class Block(nn.Module):
    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)
        self.gate, self.attention = nn.Linear(D, H), attention
        nn.init.normal_(self.qkv.weight, std=0.4)

    def forward(self, x: Tensor, masks: Masks, past: Any = None, keep: Callable[..., Any] | None = None) -> Any:
        x = self.norm(x)
        q, k, v = (one.unflatten(-1, (H, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        kept = (k, v) if keep is None else keep(k, v)
        z = self.attention(self, q, k, v, masks)
        return self.out(z.transpose(1, 2).flatten(2)), kept


class Decoder(nn.Module):
    """A decoder with learned positions that takes a padding mask."""

    is_causal = True

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place, self.head = nn.Embedding(VOCAB, D), nn.Embedding(128, D), nn.Linear(D, VOCAB)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(N_LAYERS))

    def embedded(self, ids: Tensor, start: int = 0, valid: Tensor | None = None) -> Tensor:
        places = torch.arange(start, start + ids.shape[1])[None]
        return self.embed(ids) + self.place(places if valid is None else (valid.cumsum(1) - 1).clamp(min=0))

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        valid, n = None if attention_mask is None else attention_mask.bool(), ids.shape[1]
        x, masks = self.embedded(ids, 0, valid), Masks(torch.ones(n, n).tril().bool(), valid)
        for block in self.blocks:
            x = x + block(x, masks)[0]
        return self.head(x)


class Encoder(Decoder):
    """The same without a causal mask."""

    is_causal = False

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        valid = torch.ones_like(ids) if attention_mask is None else attention_mask
        x, masks = self.embedded(ids), Masks(torch.ones(ids.shape[1], ids.shape[1]).bool(), valid.bool())
        for block in self.blocks:
            x = x + block(x, masks)[0]
        return self.head(x)


class Returning(Decoder):
    """Returns its attention if asked, on another path."""

    def __init__(self, attention: Callable[..., Tensor], other: Callable[..., Tensor]) -> None:
        super().__init__(attention)
        self.other = other

    def forward(self, ids: Tensor, return_attention: bool = False) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        usual = self.blocks[0].attention
        for block in self.blocks:
            block.attention = self.other if return_attention else usual  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return super().forward(ids)
        finally:
            for block in self.blocks:
                block.attention = usual  # pyright: ignore[reportAttributeAccessIssue]


class Checkpointed(Decoder):
    """Recomputes its blocks in the backward pass if asked."""

    def __init__(self, is_fixed: bool) -> None:
        super().__init__(by_steps)
        self.grad_checkpointing, self.is_fixed = False, is_fixed

    def forward(self, ids: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        n, x = ids.shape[1], self.embedded(ids)
        masks = Masks(torch.ones(n, n).tril().bool(), None)
        for block in self.blocks:
            if self.grad_checkpointing:
                given = masks if self.is_fixed else Masks(torch.ones(n, n).bool(), None)
                x = x + checkpoint(block, x, given, use_reentrant=False)[0]  # pyright: ignore[reportOptionalSubscript]
            else:
                x = x + block(x, masks)[0]
        return self.head(x)


class Cached(Decoder):
    """Reads new tokens after cached ones; `seen` counts the tokens that its cache has seen."""

    def __init__(
        self, attention: Callable[..., Tensor], *, keep: Callable[..., Any] | None = None, counts_twice: bool = False
    ) -> None:
        super().__init__(attention)
        self.keep, self.counts_twice = keep, counts_twice

    def forward(self, ids: Tensor, past: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        n, (seen, pairs) = ids.shape[1], past or (0, [None] * N_LAYERS)
        x, kept = self.embedded(ids, seen), []
        n_key = n if pairs[0] is None else n + pairs[0][0].shape[2]
        causal = torch.ones(n, n_key).tril(n_key - n).bool()
        if self.keep is not None:
            causal = causal & ~torch.ones(n, n_key).tril(n_key - n - WINDOW).bool()
        for block, pair in zip(self.blocks, pairs, strict=True):
            made, pair = block(x, Masks(causal, None), pair, self.keep)
            x = x + made
            kept.append(pair)
        seen += 2 * n if self.counts_twice and not seen else n
        return self.head(x), (seen, kept)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def diverged(attention: Callable[..., Tensor]) -> Decoder:
    """A decoder whose scores are as low as a high learning rate made them."""
    model = Decoder(attention)
    for block in model.blocks:
        bias = block.qkv.bias  # pyright: ignore[reportAttributeAccessIssue]
        nn.init.constant_(bias[:D], 65.0)  # pyright: ignore[reportArgumentType, reportIndexIssue]
        nn.init.constant_(bias[D : 2 * D], -65.0)  # pyright: ignore[reportArgumentType, reportIndexIssue]
    return model


def by_steps(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return scores_of(q, k).masked_fill(~masks.allowed, -math.inf).softmax(dim=-1) @ v


def fused(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=masks.allowed)


def fused_causal(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gated(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks, *, always: bool) -> Tensor:
    """A bias from the values joins the mask, which is only made where the kernel cannot make it."""
    bias = F.logsigmoid(v.sum(dim=-1))[:, :, None].expand(-1, -1, q.shape[2], -1)
    if always or masks.valid is not None:
        bias = bias.masked_fill(~masks.allowed, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def gated_without_mask(*given: Any) -> Tensor:
    return gated(*given, always=False)


def gated_with_mask(*given: Any) -> Tensor:
    return gated(*given, always=True)


def lowest_as_true(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    """An additive mask, whose lowest numbers become true where it is read as a boolean."""
    added = torch.zeros(masks.allowed.shape).masked_fill(~masks.allowed, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added.bool())


def lowest_added(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    added = torch.zeros(masks.allowed.shape).masked_fill(~masks.allowed, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added)


def in_blocks(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks, *, lone: bool) -> Tensor:
    """A mask for 32 queries at a time; a block with a single one looks like a step of decoding, which needs no mask."""
    parts = list(masks.allowed.split(32, dim=-2))
    if parts[-1].shape[-2] == 1 and len(parts) > 1 and lone:
        parts[-1] = torch.ones_like(parts[-1])
    scores = scores_of(q, k).masked_fill(~torch.cat(parts, dim=-2), torch.finfo(q.dtype).min)
    return scores.softmax(dim=-1) @ v


def in_blocks_without_mask(*given: Any) -> Tensor:
    return in_blocks(*given, lone=True)


def in_blocks_with_mask(*given: Any) -> Tensor:
    return in_blocks(*given, lone=False)


def without_mask(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return scores_of(q, k).softmax(dim=-1) @ v


def true_added(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return (scores_of(q, k) + masks.causal).softmax(dim=-1) @ v


def masked_after_softmax(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    weights = scores_of(q, k).softmax(dim=-1)
    return weights.masked_fill(~masks.allowed, 0.0) @ v


def lowest_is_10_000(block: Block, q: Tensor, k: Tensor, v: Tensor, masks: Masks) -> Tensor:
    return scores_of(q, k).masked_fill(~masks.allowed, -1e4).softmax(dim=-1) @ v


def last_of_window(k: Tensor, v: Tensor) -> Any:
    return k[:, :, -(WINDOW - 1) :], v[:, :, -(WINDOW - 1) :]


def rolled_too_early(k: Tensor, v: Tensor) -> Any:
    n = WINDOW - 2 if k.shape[2] >= WINDOW - 1 else WINDOW
    return k[:, :, -n:], v[:, :, -n:]


class Fault(NamedTuple):
    """A fault: the model before and after its fix, the check that finds it, and what the finding says."""

    before: Callable[[], nn.Module]
    after: Callable[[], nn.Module]
    check: str
    cause: str
    line: str
    """A part of the line that is wrong, or that makes the mask."""
    cell: Callable[[int, int], bool] | None = None
    """Which query and key show it."""


def is_later(query: int, key: int) -> bool:
    return key > query


FAULTS = {
    "transformers #48748": Fault(
        lambda: Decoder(gated_without_mask), lambda: Decoder(gated_with_mask),
        "causality", "mask_not_applied", "attn_mask=bias", is_later,
    ),
    "transformers PR #38094": Fault(
        lambda: Decoder(lowest_as_true), lambda: Decoder(lowest_added),
        "causality", "mask_inverted", "attn_mask=added.bool()", is_later,
    ),
    "transformers #47651": Fault(
        lambda: Decoder(in_blocks_without_mask), lambda: Decoder(in_blocks_with_mask),
        "left_padding", "padding_not_masked", "torch.cat(parts", lambda query, key: query == 32 and key < 27,
    ),
    "transformers #37574": Fault(
        lambda: Cached(fused, keep=rolled_too_early), lambda: Cached(fused, keep=last_of_window),
        "cache", "cache_evicted_early", "torch.cat([past[0], k]", None,
    ),
    "keras #23038": Fault(
        lambda: Returning(fused_causal, without_mask), lambda: Returning(fused_causal, by_steps),
        "causality_with_attention", "mask_not_applied", "q @ k.transpose", is_later,
    ),
    "lightly #2049": Fault(
        lambda: Checkpointed(False), lambda: Checkpointed(True),
        "backends", "mask_not_applied", "masked_fill(~masks.allowed", is_later,
    ),
    "speculators PR #691": Fault(
        lambda: Decoder(true_added), lambda: Decoder(by_steps),
        "causality", "mask_added_as_bool", "+ masks.causal", is_later,
    ),
    "pytorch #144858": Fault(
        lambda: Cached(fused_causal), lambda: Cached(fused),
        "cache", "cache_mask_misaligned", "is_causal=True", None,
    ),
    "timm PR #2236": Fault(
        lambda: Encoder(masked_after_softmax), lambda: Encoder(by_steps),
        "right_padding", "mask_after_softmax", "weights.masked_fill", None,
    ),
    "minGPT #75": Fault(
        lambda: diverged(lowest_is_10_000), lambda: diverged(by_steps),
        "mask_constant", "mask_too_small", "", is_later,
    ),
    "tiny-llm PR #46": Fault(
        lambda: Cached(fused, counts_twice=True), lambda: Cached(fused),
        "cache", "cache_offset", "torch.arange(start", None,
    ),
}  # fmt: skip
