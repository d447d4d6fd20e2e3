"""The mask and the biases of a few queries at a time, and the keys that any of them may attend to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters.attention import Terms, permitted


@dataclass(frozen=True, eq=False)
class LazyMask:
    """A mask of Transformers that is computed for a few queries at a time, true where attention is permitted."""

    rows_of: Callable[[int, int], Bool[Tensor, "batch 1 query key"]]
    """The rows from one query up to another."""

    def rows(self, begin: int, end: int) -> Bool[Tensor, "1 query key"]:
        """The rows of the first input."""
        return self.rows_of(begin, end)[0]


@dataclass(frozen=True, eq=False)
class MaskRows:
    """The mask and the biases of a few queries."""

    allowed: Bool[Tensor, "#head query key"]
    bias: Float[Tensor, "#head query key"] | None
    """Added to the scores before the softcap, or None."""
    added: Float[Tensor, "#head query key"] | None
    """The finite part of an additive mask, added after the softcap, or None."""

    @classmethod
    def of(cls, terms: Terms, begin: int, end: int, n_key: int, device: torch.device) -> MaskRows:
        """Compute the rows of the queries from `begin` up to `end`."""
        added = None
        if isinstance(terms.allowed, LazyMask):
            allowed = terms.allowed.rows(begin, end)[..., :n_key]
        elif terms.allowed is not None:
            allowed = _first(terms.allowed)[:, begin:end, :n_key]
        elif terms.added is not None:
            rows = _first(terms.added)[:, begin:end, :n_key]
            allowed = permitted(rows)
            rest = rows.masked_fill(~allowed, 0.0)
            added = rest if bool(rest.any()) else None
        elif terms.is_causal:
            allowed = (torch.arange(n_key, device=device) <= torch.arange(begin, end, device=device)[:, None])[None]
        else:
            allowed = torch.ones(1, end - begin, n_key, dtype=torch.bool, device=device)
        bias = None if terms.bias is None else _first(terms.bias)[:, begin:end, :n_key]
        return cls(allowed.expand(-1, end - begin, -1), bias, added)

    def at_keys(self, keys: slice) -> MaskRows:
        """Some keys. Those beyond the last are forbidden."""
        begin, end, _ = keys.indices(self.allowed.shape[-1])
        beyond = 0 if keys.stop is None else max(0, keys.stop - end)
        return self._cut(lambda x: F.pad(x[..., begin:end], (0, beyond)) if beyond else x[..., begin:end])

    def at_heads(self, heads: slice) -> MaskRows:
        """Some heads."""
        return self._cut(lambda x: x if len(x) == 1 else x[heads])

    def _cut(self, cut: Callable[[Tensor], Tensor]) -> MaskRows:
        return MaskRows(cut(self.allowed), *(None if one is None else cut(one) for one in (self.bias, self.added)))

    def scores(self, products: Tensor, softcap: float | None) -> Tensor:
        """The scores, in place of the scaled products, before the mask."""
        if self.bias is not None:
            products = products.add_(self.bias)
        if softcap is not None:
            products = products.div_(softcap).tanh_().mul_(softcap)
        return products if self.added is None else products.add_(self.added)


def _first(x: Tensor) -> Tensor:
    """A mask or bias of the first input, [head or 1, query, key]."""
    while x.dim() < 4:
        x = x[None]
    return x[0]


@dataclass(frozen=True, eq=False)
class Span:
    """A few queries, and the keys that any of them may attend to, in whole blocks."""

    queries: slice
    keys: slice
    rows: MaskRows
    n_permitted: Int[Tensor, "#head row"]
    permitted: Int[Tensor, "row 2"]
    hidden: slice
    """Those of the keys that the mask hides from a query, counted from the first of the keys."""

    @classmethod
    def of(cls, rows: MaskRows, begin: int, block: int) -> Span:
        """The keys of some rows of a mask, the first of which is that of query `begin`."""
        (n_rows, n_key), allowed = rows.allowed.shape[1:], rows.allowed.numpy(force=True)  # [head, row, key]
        n_permitted = np.array([[np.count_nonzero(row) for row in head] for head in allowed])
        of_any = np.logical_or.reduce(allowed) if len(allowed) > 1 else allowed[0]  # [row, key]
        first, end = of_any.argmax(1), n_key - of_any[:, ::-1].argmax(1)
        is_empty = ~of_any[np.arange(n_rows), first]
        first[is_empty], end[is_empty] = 0, 0
        left, right = 0, block
        if not is_empty.all():
            left, right = int(first[~is_empty].min()) // block * block, -(-int(end.max()) // block) * block
        from_, to = left, right
        if (n_permitted == end - first).all():  # each row is one range, in all heads
            from_ = left if first.max() > left else max(left, int(end.min()))
            to = right if end.min() < right else int(first.max())
        ends = torch.from_numpy(np.stack([first, end], axis=1))
        hidden = slice(from_ - left, max(from_, to) - left)
        cut = rows.at_keys(slice(left, right))
        return cls(slice(begin, begin + n_rows), slice(left, right), cut, torch.from_numpy(n_permitted), ends, hidden)
