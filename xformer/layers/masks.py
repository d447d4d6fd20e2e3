"""Attention masks: padding, packing, causality, the registered mask and a custom mask, combined once per forward pass.

    scores[q, k] = −∞   where a mask forbids q to attend to k          (Vaswani et al. 2017, §3.2.3)

A query without any permitted key gets a row of zeros instead of NaN. The rows of a batch [batch, pos] contain padded or packed
sequences; a `SequencePacking` gives each cell a segment number, 0 for padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.errors import InputError


def causal_mask(
    n_query: int, n_key: int, *, see_self: bool = True, device: torch.device | str = "cpu"
) -> Bool[Tensor, "query key"]:
    """Return True where a key is not later than the query; the last query is aligned with the last key, as with a cache.

    With `see_self=False` the query's own position is masked too, so the first query has no permitted key.
    """
    diagonal = n_key - n_query - (0 if see_self else 1)
    return torch.ones(n_query, n_key, dtype=torch.bool, device=device).tril(diagonal)


def layout_mask(queries: SequencePacking, keys: SequencePacking) -> Bool[Tensor, "batch 1 query key"] | None:
    """Return True where the key is a token of the query's own sequence; None if the layouts mask nothing.

    In cross-attention, a sequence has the same segment number in both streams.
    """
    if keys.segments is None:
        return None
    if queries.segments is None:
        return (keys.segments > 0)[:, None, None, :]  # [batch, 1, 1, key]
    same = queries.segments[:, :, None] == keys.segments[:, None, :]  # [batch, query, key]
    return (same & (keys.segments > 0)[:, None, :])[:, None]  # [batch, 1, query, key]


@dataclass(frozen=True)
class LayerMask:
    """The mask of one attention layer, in two parts that a tape records separately.

    `layout` is the mask of padding, packing and a custom mask; `causal` is the causal mask. None masks nothing.
    """

    layout: Bool[Tensor, "#batch #head #query key"] | None = None
    causal: Bool[Tensor, "query key"] | None = None
    rows_may_be_empty: bool = False
    is_ordered: bool = True
    """Whether queries and keys are positions of one stream, so that causality is defined; False in cross-attention."""
    is_plain_causal: bool = False
    """Whether the mask is exactly the lower triangle with diagonal, for which the fused kernel has a special case."""

    @cached_property
    def allowed(self) -> Bool[Tensor, "#batch #head query key"] | None:
        """Both parts combined; None masks nothing."""
        if self.layout is None:
            return None if self.causal is None else self.causal[None, None]
        return self.layout if self.causal is None else self.layout & self.causal

    @cached_property
    def empty_rows(self) -> Bool[Tensor, "#batch #head #query 1"] | None:
        """True for queries without any permitted key; None if there can be none."""
        if not self.rows_may_be_empty or self.allowed is None:
            return None
        return ~self.allowed.any(dim=-1, keepdim=True)

    @cached_property
    def allowed_or_empty(self) -> Bool[Tensor, "#batch #head query key"] | None:
        """`allowed`, with all keys permitted to queries without any, for which a kernel's softmax would give NaN."""
        return self.allowed if self.allowed is None or self.empty_rows is None else self.allowed | self.empty_rows

    def only(self, seen: Bool[Tensor, "#batch #head query key"]) -> LayerMask:
        """Return the mask restricted to `seen`, which may have empty rows."""
        return LayerMask(layout=seen if self.allowed is None else self.allowed & seen, rows_may_be_empty=True)

    def hide(
        self, scores: Float[Tensor, "batch head query key"], value: float = -torch.inf
    ) -> Float[Tensor, "batch head query key"]:
        """Set masked scores to `value`, in place if `scores` needs no gradient."""
        if self.allowed is None:
            return scores
        fill = scores.masked_fill if scores.requires_grad else scores.masked_fill_
        return fill(~self.allowed, value)


NO_MASK = LayerMask()


def combine(
    queries: SequencePacking,
    keys: SequencePacking,
    *,
    n_query: int,
    n_key: int,
    causal: bool,
    see_self: bool = True,
    custom_mask: Bool[Tensor, "*batch query key"] | None = None,
    component: Bool[Tensor, "query key"] | None = None,
    device: torch.device | str = "cpu",
) -> LayerMask:
    """Combine the self-attention mask of one stack, which is the same in every layer.

    Args:
        queries: The layout of the queries, with their padding.
        keys: The layout of the keys.
        n_query: The number of queries.
        n_key: The number of keys.
        causal: Whether later keys are masked.
        see_self: With `causal`, whether a query sees its own position.
        custom_mask: A mask of the caller, true where attention is permitted, [query, key] or [batch, query, key].
        component: The registered mask (`xformer.components`), true where permitted; None masks nothing.
        device: The device of the causal mask.
    """
    allowed = layout_mask(queries, keys)
    if component is not None:
        allowed = component[None, None] if allowed is None else allowed & component
    if custom_mask is not None:
        if custom_mask.dtype != torch.bool or custom_mask.shape[-2:] != (n_query, n_key) or custom_mask.dim() > 3:
            raise InputError(
                f"A mask must be boolean with shape [query, key] = [{n_query}, {n_key}], optionally with a batch axis first, "
                f"got {custom_mask.dtype} {list(custom_mask.shape)}; for example "
                f"torch.ones({n_query}, {n_key}, dtype=torch.bool)."
            )
        custom = custom_mask[None, None] if custom_mask.dim() == 2 else custom_mask[:, None]  # [#batch, 1, query, key]
        allowed = custom if allowed is None else allowed & custom
    triangle = causal_mask(n_query, n_key, see_self=see_self, device=device) if causal else None
    return LayerMask(
        layout=allowed,
        causal=triangle,
        rows_may_be_empty=custom_mask is not None or (causal and not see_self) or queries.padded or keys.padded,
        is_plain_causal=causal and see_self and allowed is None and n_query == n_key,
    )


def masked_softmax(
    scores: Float[Tensor, "batch head query key"], empty: Bool[Tensor, "#batch #head #query 1"] | None
) -> Float[Tensor, "batch head query key"]:
    """Return the softmax over the keys of masked scores; rows marked as `empty`, without any permitted key, are all zeros.

    Empty rows get finite scores first, because a NaN that is overwritten afterwards would still spread in the gradient.
    """
    if empty is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)


@dataclass(frozen=True)
class SequencePacking:
    """The arrangement of sequences in a batch. Without `segments`, every row is one sequence without padding."""

    positions: Int[Tensor, "*batch pos"]
    """Each token's index within its own sequence, from 0; [pos] if all rows agree."""
    mirrored: Int[Tensor, "*batch pos"]
    """The index counted from the end of the sequence: length - 1 - index."""
    segments: Int[Tensor, "batch pos"] | None = None
    padded: bool = False
    """Whether there may be padding; set on construction, so that no values have to be read from the device."""

    @classmethod
    def plain(cls, n_pos: int, device: torch.device | str = "cpu", start: int = 0) -> SequencePacking:
        """Return the layout of rows with one sequence of full length each; `start` is the position of the first cell."""
        index = torch.arange(start, start + n_pos, device=device)  # [pos]
        return cls(positions=index, mirrored=index.flip(0))

    @classmethod
    def from_valid(cls, valid: Bool[Tensor, "batch pos"]) -> SequencePacking:
        """Return the layout of rows with one sequence each, and padding (on either side) where `valid` is false."""
        return cls.from_segments(valid.long(), padded=True)

    @classmethod
    def from_segments(cls, segments: Int[Tensor, "batch pos"], *, padded: bool = True) -> SequencePacking:
        """Return the layout of rows with several sequences, each a run of equal numbers above 0; 0 is padding."""
        n_pos = segments.shape[-1]
        index = torch.arange(n_pos, device=segments.device).expand_as(segments)  # [batch, pos]
        same = segments[:, :, None] == segments[:, None, :]  # [batch, query, key]
        first = torch.where(same, index[:, None, :], n_pos).amin(dim=-1)  # [batch, pos]
        last = torch.where(same, index[:, None, :], -1).amax(dim=-1)  # [batch, pos]
        token = segments > 0
        positions, mirrored = (torch.where(token, of, 0) for of in (index - first, last - index))
        return cls(positions, mirrored, segments, padded)
