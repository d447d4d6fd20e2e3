"""Attention masks: padding, packing, causality, the registered mask and a drawn one, combined once for a forward pass.

    scores[q, k] = −∞   where a mask forbids q to look at k          (Vaswani et al. 2017, §3.2.3)

A query without any allowed key gets a row of zeros, not the NaN of a softmax over nothing. A batch is a rectangle
[batch, pos] whose rows hold padded or packed sequences; `Layout` gives each cell a segment number, 0 for padding.
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
    """True where a key is not later than the query; the last query stands at the last key (as with a cache).

    With `see_self=False` the query's own position is excluded too, so the first one has nothing to see.
    """
    diagonal = n_key - n_query - (0 if see_self else 1)
    return torch.ones(n_query, n_key, dtype=torch.bool, device=device).tril(diagonal)


def layout_mask(queries: Layout, keys: Layout) -> Bool[Tensor, "batch 1 query key"] | None:
    """True where the key is a token of the query's own sequence; None where the layouts forbid nothing.

    Between two streams (cross-attention) a sequence keeps its segment number on both sides.
    """
    if queries.segments is None and keys.segments is None:
        return None
    if keys.segments is None:
        return None
    if queries.segments is None:
        return (keys.segments > 0)[:, None, None, :]  # [batch, 1, 1, key]
    same = queries.segments[:, :, None] == keys.segments[:, None, :]  # [batch, query, key]
    return (same & (keys.segments > 0)[:, None, :])[:, None]  # [batch, 1, query, key]


@dataclass(frozen=True)
class Mask:
    """The mask of one attention layer, in the parts that a recorded run shows and may change.

    `layout` is what padding, packing and a drawn mask allow; `causal` what the order of time allows. None allows all.
    """

    layout: Bool[Tensor, "#batch #head #query key"] | None = None
    causal: Bool[Tensor, "query key"] | None = None
    rows_may_be_empty: bool = False
    is_ordered: bool = True
    """Whether queries and keys are one stream, so that "later" means something (not so in cross-attention)."""
    is_plain_causal: bool = False
    """The one mask that the fused kernel knows by name: lower triangle with diagonal, nothing else."""

    @cached_property
    def allowed(self) -> Bool[Tensor, "#batch #head query key"] | None:
        """Both parts together."""
        if self.layout is None:
            return None if self.causal is None else self.causal[None, None]
        return self.layout if self.causal is None else self.layout & self.causal

    @cached_property
    def empty_rows(self) -> Bool[Tensor, "#batch #head #query 1"] | None:
        """True for a query that may look at nothing; None where that cannot happen."""
        if not self.rows_may_be_empty or self.allowed is None:
            return None
        return ~self.allowed.any(dim=-1, keepdim=True)

    @cached_property
    def allowed_or_empty(self) -> Bool[Tensor, "#batch #head query key"] | None:
        """`allowed`, and everything to a query that may look at nothing: a kernel's softmax over nothing would be NaN."""
        return self.allowed if self.allowed is None or self.empty_rows is None else self.allowed | self.empty_rows

    def only(self, seen: Bool[Tensor, "#batch #head query key"]) -> Mask:
        """The mask where no more than `seen` may be looked at; rows of it may be empty."""
        return Mask(layout=seen if self.allowed is None else self.allowed & seen, rows_may_be_empty=True)

    def hide(
        self, scores: Float[Tensor, "batch head query key"], value: float = -torch.inf
    ) -> Float[Tensor, "batch head query key"]:
        """`value` wherever a query may not look, written into `scores` themselves where no gradient is asked for."""
        if self.allowed is None:
            return scores
        fill = scores.masked_fill if scores.requires_grad else scores.masked_fill_
        return fill(~self.allowed, value)


NO_MASK = Mask()


def combine(
    queries: Layout,
    keys: Layout,
    *,
    n_query: int,
    n_key: int,
    causal: bool,
    see_self: bool = True,
    drawn: Bool[Tensor, "*batch query key"] | None = None,
    component: Bool[Tensor, "query key"] | None = None,
    device: torch.device | str = "cpu",
) -> Mask:
    """The self-attention mask of one stack, the same in every layer.

    Args:
        queries: Where the queries stand, with their padding.
        keys: The same of the keys.
        n_query: How many queries there are.
        n_key: How many keys there are.
        causal: Whether later keys are masked.
        see_self: With `causal`, whether a query sees its own position.
        drawn: A mask of the caller, [query, key] or [batch, query, key].
        component: What the registered mask allows (`xformer.components`); None allows all.
        device: Where the causal mask is made.
    """
    allowed = layout_mask(queries, keys)
    if component is not None:
        allowed = component[None, None] if allowed is None else allowed & component
    if drawn is not None:
        if drawn.dtype != torch.bool or drawn.shape[-2:] != (n_query, n_key) or drawn.dim() > 3:
            raise InputError(
                f"A mask must be boolean with shape [query, key] = [{n_query}, {n_key}] (a batch in front if you like), "
                f"got {drawn.dtype} {list(drawn.shape)}; for example torch.ones({n_query}, {n_key}, dtype=torch.bool)."
            )
        drawn = drawn[None, None] if drawn.dim() == 2 else drawn[:, None]  # [#batch, 1, query, key]
        allowed = drawn if allowed is None else allowed & drawn
    triangle = causal_mask(n_query, n_key, see_self=see_self, device=device) if causal else None
    return Mask(
        layout=allowed,
        causal=triangle,
        rows_may_be_empty=drawn is not None or (causal and not see_self) or queries.padded or keys.padded,
        is_plain_causal=causal and see_self and allowed is None and n_query == n_key,
    )


def masked_softmax(
    scores: Float[Tensor, "batch head query key"], empty: Bool[Tensor, "#batch #head #query 1"] | None
) -> Float[Tensor, "batch head query key"]:
    """softmax over the keys of scores that are -inf where not allowed; an `empty` row, which allows nothing, is all zeros.

    The empty rows are given finite scores first: a NaN that is only overwritten afterwards still poisons the gradient.
    """
    if empty is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)


@dataclass(frozen=True)
class Layout:
    """The sequences of one batch. Without `segments`, every row is one sequence without padding."""

    positions: Int[Tensor, "*batch pos"]
    """Each token's index within its own sequence, from 0; [pos] where all rows agree."""
    mirrored: Int[Tensor, "*batch pos"]
    """The same counted from the other end: length - 1 - index."""
    segments: Int[Tensor, "batch pos"] | None = None
    padded: bool = False
    """Whether a cell may be padding (set by the code that builds the layout, so that no values have to be read)."""

    @classmethod
    def plain(cls, n_pos: int, device: torch.device | str = "cpu", start: int = 0) -> Layout:
        """Rows that are one sequence each, all of the same length; `start` is the position of the first cell."""
        index = torch.arange(start, start + n_pos, device=device)  # [pos]
        return cls(positions=index, mirrored=index.flip(0))

    @classmethod
    def from_valid(cls, valid: Bool[Tensor, "batch pos"]) -> Layout:
        """Rows that are one sequence each, with padding wherever `valid` is false (on either side)."""
        return cls.from_segments(valid.long(), padded=True)

    @classmethod
    def from_segments(cls, segments: Int[Tensor, "batch pos"], *, padded: bool = True) -> Layout:
        """Rows that hold several sequences, each a run of equal numbers above 0; 0 is padding."""
        n_pos = segments.shape[-1]
        index = torch.arange(n_pos, device=segments.device).expand_as(segments)  # [batch, pos]
        same = segments[:, :, None] == segments[:, None, :]  # [batch, query, key]
        first = torch.where(same, index[:, None, :], n_pos).amin(dim=-1)  # [batch, pos]
        last = torch.where(same, index[:, None, :], -1).amax(dim=-1)  # [batch, pos]
        token = segments > 0
        zero = torch.zeros_like(index)
        return cls(
            positions=torch.where(token, index - first, zero),
            mirrored=torch.where(token, last - index, zero),
            segments=segments,
            padded=padded,
        )
