"""Bugs in attention: the softmax, the mask, and the sources of queries, keys and values."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.config import ModelConfig
from xformer.doctor.faults.bug import bug, exchange
from xformer.errors import InputError
from xformer.layers.attention import Attention, LayerCache, Scores
from xformer.layers.masks import LayerMask
from xformer.tape import AnyTape


class OverQueries(Attention):
    """softmax(S, dim=-2). Masked cells are set to 0, because a column of only −∞ would give NaN."""

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden.all(dim=-2, keepdim=True), 0.0).softmax(dim=-2).masked_fill(hidden, 0.0)


class OverHeads(Attention):
    """softmax(S, dim=1). Masked cells are set to 0, because the softmax of only −∞ is NaN."""

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden, 0.0).softmax(dim=1).masked_fill(hidden, 0.0)


class Unscaled(Attention):
    """S = Q Kᵀ."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k, v) * math.sqrt(self.d_head)


class ScaledAfter(Unscaled):
    """A = softmax(Q Kᵀ) / √d_head."""

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        return super().softmax(scores, mask) / math.sqrt(self.d_head)


class OverNothing(Attention):
    """softmax(S) without special cases, which is 0/0 for a query whose keys are all masked."""

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        return scores.softmax(dim=-1)


def _wide(config: ModelConfig) -> bool:
    return config.d_head > 1


SOFTMAX_BUGS = (
    bug("softmax_over_queries", exchange(Attention, OverQueries)),
    bug("softmax_over_heads", exchange(Attention, OverHeads), lambda config: config.n_heads > 1),
    bug("scaled_after_softmax", exchange(Attention, ScaledAfter), _wide),
    bug("no_scale", exchange(Attention, Unscaled), _wide),
    bug("softmax_of_nothing", exchange(Attention, OverNothing), shows="with padding"),
)


class SeesPadding(Attention):
    """The mask without its padding, only the causal part."""

    def allow(self, mask: LayerMask, scores: Tensor, tape: AnyTape) -> LayerMask:
        return super().allow(replace(mask, layout=None), scores, tape)


class OtherTriangle(Attention):
    """A causal mask of another shape, given by `triangle`, in layers that have one."""

    def triangle(self, causal: Tensor) -> Tensor:
        """Return the replacement of the causal mask [query, key], in which the last query is aligned with the last key."""
        raise NotImplementedError

    def allow(self, mask: LayerMask, scores: Tensor, tape: AnyTape) -> LayerMask:
        if mask.causal is not None:
            mask = replace(mask, causal=self.triangle(mask.causal))
        return super().allow(mask, scores, tape)


class OffByOne(OtherTriangle):
    """key ≤ query + 1."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal).tril(causal.shape[1] - causal.shape[0] + 1)


class NoTriangle(OtherTriangle):
    """Every key."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal)


class UpsideDown(OtherTriangle):
    """key ≥ query."""

    def triangle(self, causal: Tensor) -> Tensor:
        return torch.ones_like(causal).triu(causal.shape[1] - causal.shape[0])


class HiddenByZero(Attention):
    """0 instead of −∞: e⁰ = 1 is as much weight as an average key gets."""

    def mask(self, scores: Scores, mask: LayerMask) -> Scores:
        return mask.hide(scores, 0.0)

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        return scores.softmax(dim=-1)


class HiddenTooLate(Attention):
    """Forbidden weights are zeroed after the softmax, which has already normalised over them."""

    def mask(self, scores: Scores, mask: LayerMask) -> Scores:
        return scores

    def softmax(self, scores: Scores, mask: LayerMask) -> Scores:
        return mask.hide(scores.softmax(dim=-1), 0.0)


def _causal(config: ModelConfig) -> bool:
    return bool(config.causal)


MASK_BUGS = (
    bug(
        "no_padding_mask",
        exchange(Attention, SeesPadding),
        lambda config: config.architecture != "decoder" and not (config.architecture == "encoder" and config.causal),
        shows="with padding",
    ),
    bug("causal_off_by_one", exchange(Attention, OffByOne), _causal),
    bug("causal_ignored", exchange(Attention, NoTriangle), _causal),
    bug("causal_upside_down", exchange(Attention, UpsideDown), _causal),
    bug("masked_with_zero", exchange(Attention, HiddenByZero), _causal),
    bug("masked_after_softmax", exchange(Attention, HiddenTooLate), _causal),
)


class KeysAsValues(Attention):
    """Called as attention(q, v, k): scores use the values, and the output mixes the keys."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, v, k)

    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Tensor:
        return super().mix(pattern, v, k)


class OfEqualLength(Attention):
    """Cross-attention that confuses the two streams, which only runs if both are equally long."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the streams from which q, k and v are projected."""
        raise NotImplementedError

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        if memory is None:
            return super().project(x, memory, cache)
        if x.shape[1] != memory.shape[1]:
            raise InputError(
                f"With this bug, source and target must be equally long, got {memory.shape[1]} and {x.shape[1]} tokens; "
                "other lengths raise an error, which reveals the bug."
            )
        weights = self.weight_in.split(self.rows)
        biases = (None, None, None) if self.bias_in is None else self.bias_in.split(self.rows)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip(self.streams(x, memory), weights, biases, strict=True))
        return self.split(q), self.split(k, self.n_kv_heads), self.split(v, self.n_kv_heads)


class AskedByMemory(OfEqualLength):
    """Q and K from the memory, V from the target."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return memory, memory, x


class RolesExchanged(OfEqualLength):
    """Q from the memory, K and V from the target."""

    def streams(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return memory, x, x


class MemoryLost(Attention):
    """The target attends to itself, without any mask: the result of the call with the memory was not returned."""

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, None, None)

    def allow(self, mask: LayerMask, scores: Tensor, tape: AnyTape) -> LayerMask:
        return super().allow(LayerMask(is_ordered=False), scores, tape)


class SplitByView(Attention):
    """view(batch, head, pos, width) straight from [batch, pos, head·width], without the transpose."""

    def split(self, x: Tensor, n_heads: int | None = None) -> Tensor:
        batch, n_pos, features = x.shape
        n_heads = n_heads or self.n_heads
        return x.reshape(batch, n_heads, n_pos, features // n_heads)


def _pair(config: ModelConfig) -> bool:
    return config.architecture == "encoder-decoder"


ROLE_BUGS = (
    bug("keys_values_swapped", exchange(Attention, KeysAsValues), lambda config: config.d_head == config.d_value),
    bug("cross_queries_from_memory", exchange(Attention, AskedByMemory, "cross_attn"), _pair),
    bug("cross_roles_swapped", exchange(Attention, RolesExchanged, "cross_attn"), _pair),
    bug("forgotten_return", exchange(Attention, MemoryLost, "cross_attn"), _pair),
    bug("split_by_view", exchange(Attention, SplitByView), lambda config: config.n_heads > 1),
)
