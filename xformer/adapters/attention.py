"""Attention computed step by step for models of any family; every step passes through the tape.

    scores  = softcap(q kᵀ · scale + bias)            −∞ where a query may not attend
    pattern = softmax(scores)                          with a sink: over the keys and one extra score without a value
    z       = pattern v

Grouped heads (Ainslie et al. 2023) share keys and values; the tape gets them once per query head.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.program.heads import HeadLayout
from xformer.tape import SILENT, AnyTape

T = TypeVar("T")
FORBIDDEN = -5e3
"""The threshold in an additive mask: masked cells hold −10,000 or less; position biases lie above."""
QUERIES = 256
"""The number of queries that are computed at once where their keys are not all of them."""


UNDERFLOW = 80.0
"""Scores this far below the largest of their row get a weight of 0 in float32, also without a mask."""


def permitted(scores: Float[Tensor, "*batch query key"], axis: int = -1) -> Bool[Tensor, "*batch query key"]:
    """The keys that are permitted to each query, from an additive mask, or from scores to which one was added or written.

    Forbidden are scores below any of a model, and those below a gap of their row that leaves them no weight: models also mask
    with −1,000 or −100, whatever they add it to. A bias by distance declines without a gap. `axis` is that of the softmax.
    """
    allowed = scores > FORBIDDEN
    far = scores < scores.amax(dim=axis, keepdim=True) - UNDERFLOW
    if not bool((far & allowed).any()):
        return allowed
    highest_far = scores.masked_fill(~far, -math.inf).amax(dim=axis, keepdim=True)
    gap = scores.masked_fill(far, math.inf).amin(dim=axis, keepdim=True) - highest_far
    return allowed & ~(far & (gap > UNDERFLOW / 2) & gap.isfinite())


@dataclass(frozen=True)
class Terms:
    """The inputs of a family's attention besides q, k and v."""

    scale: float
    added: Tensor | None = None
    """Added to the scores [batch, head or 1, query, key]; the lowest number of its dtype where a query may not attend."""
    allowed: Tensor | None = None
    """A boolean mask, in place of `added`."""
    bias: Tensor | None = None
    """A bias by relative position [batch or 1, head, query, key] (Raffel et al. 2020, §2.1)."""
    softcap: float | None = None
    sinks: Tensor | None = None
    """One score per head that takes weight away from all keys [head], or one per query [batch, head, query, 1]."""
    is_causal: bool = False
    """Whether the model itself hides later keys."""
    is_safe: bool = False
    """Whether a row whose scores are all −∞ gets no weight, as in PyTorch's kernels; else NaN."""


@dataclass(frozen=True)
class MaskLimits:
    """An interpreted mask, computed once for all layers that share it."""

    allowed: Bool[Tensor, "#batch #head query key"]
    own: Bool[Tensor, "query key"]
    """The cells that the model's own causality allows."""
    forbidden: Bool[Tensor, "#batch #head query key"] | None
    """None where everything is allowed."""
    empty: Bool[Tensor, "#batch #head query 1"] | None
    """Queries without any allowed key; None where there are none."""
    bias: Tensor | None
    """The part of the mask that is added to allowed scores, or None."""
    added: Tensor | None = None
    """The additive mask. In a row without an allowed key it determines the result of the softmax: uniform weights if it holds
    the lowest number of its dtype, NaN if it holds −∞.
    """
    _made: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, terms: Terms, n_query: int, n_key: int, device: torch.device) -> MaskLimits:
        """Interpret a family's mask."""
        everything = torch.ones(n_query, n_key, dtype=torch.bool, device=device)
        own = everything.tril() if terms.is_causal else everything
        allowed, bias = everything, None
        if terms.allowed is not None:
            allowed = terms.allowed
        elif terms.added is not None:
            allowed = permitted(terms.added)
            rest = terms.added.masked_fill(~allowed, 0.0)
            bias = rest if bool(rest.any()) else None
        while allowed.dim() < 4:
            allowed = allowed[None]
        return cls(allowed, own, *_forbidden_and_empty(allowed), bias, terms.added)

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """What `make` returned the first time for this key, as several layers need the same of their mask."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def parts(self, size: tuple[int, int]) -> Iterator[tuple[slice, slice, MaskLimits]]:
        """A few queries at a time, and the keys that any of them may attend to, both in whole blocks of `size` cells."""
        n_query, n_key = self.own.shape
        if self.empty is not None:  # its weights depend on all keys
            yield slice(0, n_query), slice(0, n_key), self
            return
        allowed = self.allowed.expand(*self.allowed.shape[:-2], n_query, n_key)
        bias = None if self.bias is None else self.bias.expand(*self.bias.shape[:-2], n_query, n_key)
        (tall, wide) = size
        step = tall * max(1, QUERIES // tall)
        for begin in range(0, n_query, step):
            queries = slice(begin, min(begin + step, n_query))
            found = allowed[..., queries, :].flatten(0, -2).any(dim=0).nonzero()
            left, right = int(found[0]) // wide * wide, -(-(int(found[-1]) + 1) // wide) * wide
            keys = slice(left, min(right, n_key))
            cut = allowed[..., queries, keys]
            rest = None if bias is None else bias[..., queries, keys]
            yield queries, keys, MaskLimits(cut, self.own[queries, keys], *_forbidden_and_empty(cut), rest)

    def under(self, tape: AnyTape, shape: torch.Size) -> tuple[Tensor | None, Tensor | None]:
        """Return forbidden cells and empty queries after edits. Causality passes separately, so that an edit can lift it."""
        allowed = self.allowed
        if shape[-1] == shape[-2]:
            causal = tape("causal", self.own)
            if causal is not self.own:
                # The last query may attend to every key that is not padding. Only cells of those keys are opened.
                allowed = (allowed & causal) | (causal & ~self.own & allowed[..., -1:, :])
        mask = allowed.expand(shape)
        changed = tape("mask", mask)
        if changed is mask and allowed is self.allowed:
            return self.forbidden, self.empty
        return _forbidden_and_empty(changed)


def _forbidden_and_empty(allowed: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if bool(allowed.all()):
        return None, None
    empty = ~allowed.any(dim=-1, keepdim=True)
    return ~allowed, empty if bool(empty.any()) else None


def attend(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch group key d_head"],
    v: Float[Tensor, "batch group key d_value"],
    terms: Terms,
    tape: AnyTape,
    limits: MaskLimits | None = None,
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query key"]]:
    """z and the pattern, as the tape returns them."""
    limits = limits or MaskLimits.of(terms, q.shape[-2], k.shape[-2], q.device)
    q, k, v = tape("q", q), tape("k", for_each_head(k, q.shape[1])), tape("v", for_each_head(v, q.shape[1]))
    scores = (q @ k.transpose(-2, -1)).mul_(terms.scale)  # [batch, head, query, key]
    if terms.bias is not None:
        scores = scores + tape("pos_bias", terms.bias)
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if limits.bias is not None:
        scores = scores + limits.bias
    forbidden, empty = limits.under(tape, scores.shape)
    unmasked = scores
    if forbidden is not None:  # in place where the scores without a mask are not needed again
        scores = (scores.masked_fill_ if empty is None else scores.masked_fill)(forbidden, float("-inf"))
    scores = tape("scores", scores)
    pattern = _softmax(scores if empty is None else scores.masked_fill(empty, 0.0), terms.sinks).to(v.dtype)
    if empty is not None:
        pattern = pattern.masked_fill(empty, 0.0)
        if empty is limits.empty and limits.added is not None:  # as the model itself treats such a row
            own = _softmax(unmasked + limits.added, terms.sinks).to(v.dtype)
            pattern = torch.where(empty, own.nan_to_num(0.0) if terms.is_safe else own, pattern)
    pattern = tape("pattern", pattern)
    return tape("z", pattern @ v), pattern


def fused(q: Tensor, k: Tensor, v: Tensor, terms: Terms, dropout: float = 0.0) -> Tensor:
    """z alone, from PyTorch's fused kernel, for layers that no tape records."""
    k, v = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
    if terms.softcap is not None or terms.sinks is not None:
        return attend(q, k, v, terms, SILENT)[0]
    mask = terms.added if terms.allowed is None else terms.allowed
    if terms.bias is not None:
        bias = terms.bias.to(q.dtype)
        mask = (
            bias if mask is None else (bias + mask if mask.dtype != torch.bool else bias.masked_fill(~mask, -torch.inf))
        )
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=terms.scale)


def sdpa_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, float, Tensor | None]:
    """q, k, v, the scale and the mask of a call of `F.scaled_dot_product_attention`; causality becomes a mask."""
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return query, key, value, 1 / math.sqrt(query.shape[-1]) if scale is None else scale, attn_mask


def flex_arguments(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: tuple[Any, ...], scale: float, *others: Any
) -> tuple[Tensor, Tensor, Tensor, float, Tensor | None]:
    """q, k, v, the scale and the mask of the kernel of `flex_attention`, without a `score_mod`."""
    from torch.nn.attention.flex_attention import create_mask

    n_batch, n_heads, n_query, _ = query.shape
    mask = create_mask(block_mask[-1], n_batch, n_heads, n_query, key.shape[-2], device=str(query.device))
    return query, key, value, scale, mask


KernelArguments = tuple[Tensor, Tensor, Tensor, float, Tensor | None]
"""q, k, v [batch, head, pos, d_head], the scale and the mask."""


def kernel_arguments(
    name: str, layout: HeadLayout, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> KernelArguments | None:
    """The arguments of a call of a fused function whose queries have this layout; None if they cannot be written so."""
    if name == "multi_head_attention_forward":
        given = multi_head_arguments(args, kwargs)
        return None if given is None else _projected(given)
    arguments = flex_arguments if name == "flex_attention" else sdpa_arguments
    query, key, value, scale, mask = arguments(*args, **kwargs)
    layout = layout.loosened() if key.shape[:-2] != query.shape[:-2] else layout
    if mask is not None and mask.dim() > 2:
        mask = layout.to_heads(mask.expand(*query.shape[:-1], mask.shape[-1]))
    return layout.to_heads(query), layout.to_heads(key), layout.to_heads(value), scale, mask


def for_each_head(x: Float[Tensor, "batch group key width"], n_heads: int) -> Float[Tensor, "batch head key width"]:
    """Keys or values as each head reads them: head h uses group h · groups / heads. Shares storage."""
    groups = x.shape[1]
    if groups == n_heads:
        return x
    return x[:, :, None].expand(-1, -1, n_heads // groups, -1, -1).flatten(1, 2)


def _softmax(scores: Float[Tensor, "batch head query key"], sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    sinks = sinks if sinks.dim() == 4 else sinks.reshape(1, -1, 1, 1)
    column = sinks.expand(*scores.shape[:-1], 1).to(scores.dtype)
    return F.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


Attend = Callable[[Tensor, Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]]
"""Computes z and the pattern from q, k and v [batch, head, pos, d_head], the scale and the additive mask."""


def multi_head_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `F.multi_head_attention_forward` by name; None for calls with bias or static keys or `add_zero_attn`."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    is_plain = all(given[name] is None for name in ("bias_k", "bias_v", "static_k", "static_v"))
    return given if is_plain and not given["add_zero_attn"] else None


def multi_head_attention(attend: Attend, given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Compute `F.multi_head_attention_forward` for these arguments with `attend`, without dropout."""
    is_batched = given["query"].dim() == 3
    z, pattern = attend(*_projected(given))
    out = F.linear(z.permute(2, 0, 1, 3).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
    shown = None
    if given["need_weights"]:
        shown = pattern.mean(dim=1) if given["average_attn_weights"] else pattern
        shown = shown if is_batched else shown[0]
    return (out if is_batched else out[:, 0]), shown  # [pos, batch, d_model]


def _projected(given: dict[str, Any]) -> KernelArguments:
    """The arguments of the kernel inside `F.multi_head_attention_forward`."""
    every = [given[name] for name in ("query", "key", "value")]  # [pos, batch, d_model]
    query, key, value = every if every[0].dim() == 3 else [x[:, None] for x in every]
    n_heads, d_model = given["num_heads"], query.shape[-1]
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (n_heads, -1)).permute(1, 2, 0, 3)  # [batch, head, pos, d_head]
        for x, weight, bias in zip((query, key, value), *_projections(given, d_model), strict=True)
    )
    return q, k, v, 1 / math.sqrt(q.shape[-1]), _mask(given, n_heads, q)


def _projections(given: dict[str, Any], d_model: int) -> tuple[list[Tensor], list[Tensor | None]]:
    bias = given["in_proj_bias"]
    biases: list[Tensor | None] = [None] * 3 if bias is None else list(bias.chunk(3))
    if given["use_separate_proj_weight"]:
        return [given[f"{name}_proj_weight"] for name in "qkv"], biases
    return list(given["in_proj_weight"].split(d_model)), biases


def _mask(given: dict[str, Any], n_heads: int, q: Tensor) -> Tensor | None:
    """Combine the attention and padding masks into one additive mask [batch, head or 1, query, key]."""
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
