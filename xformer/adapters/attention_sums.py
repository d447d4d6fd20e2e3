"""Attention of long inputs: z and sums over the pattern, in blocks of queries, without the pattern itself.

    s[q, k] = softcap(q kᵀ · scale + bias)            for a few queries at a time
    L[q]    = ln Σₖ exp s[q, k]                        with a sink: and exp of the sink
    p[q, k] = exp(s[q, k] − L[q])                      so that L and q, k give any cell again, exactly
    z[q]    = Σₖ p[q, k] v[k]

The rows of a block are complete, so every sum is exact: in an online softmax (Dao et al. 2022), a later key would change the
weights of earlier ones. A pattern of 32,768 tokens takes 4.3 GB in each head, and its sums 1.6 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters.attention import FORBIDDEN, Terms, for_each_head
from xformer.errors import InputError
from xformer.tape import StopForward, Tape

CELLS = 1_000_000
"""The number of scores that are computed at once; 4 MB, which the cache of a core holds."""
BLOCK = 128
"""The side of the smallest blocks of cells with a mean and a maximum."""
LOWEST = -1e30
"""The score of a masked cell. It is finite, because 0 · −∞ is NaN; its weight is exactly 0."""


@dataclass(frozen=True, eq=False)
class LazyMask:
    """A mask of Transformers that is computed for a few queries at a time, true where attention is permitted."""

    rows_of: Callable[[int, int], Bool[Tensor, "batch 1 query key"]]
    """The rows from one query up to another."""

    def rows(self, begin: int, end: int) -> Bool[Tensor, "1 query key"]:
        """The rows of the first input."""
        return self.rows_of(begin, end)[0]


@dataclass(frozen=True, eq=False)
class AttentionSums:
    """Sums over the pattern p [head, query, key] of one layer, which is never in memory at once.

    Queries that are padding count in none of the sums over queries.
    """

    log_normaliser: Float[Tensor, "head query"]
    """L; −∞ for a query without any permitted key, whose weights are 0."""
    entropy: Float[Tensor, "head query"]
    """−Σₖ p ln p, in nats."""
    largest: Float[Tensor, "head query"]
    """maxₖ p."""
    largest_key: Int[Tensor, "head query"]
    """The key with the largest weight; the first of them."""
    first: Float[Tensor, "head query"]
    """The weight on the first key that is not padding."""
    received: Float[Tensor, "head key"]
    """Σ over queries of p: how much a key is attended to."""
    by_offset: Float[Tensor, "head offset"]
    """Σ of p over the cells with the same key − query, from −(n_query − 1) to n_key − 1."""
    block_sum: Float[Tensor, "head row col"]
    """Σ of p over each block of `block` × `block` cells."""
    block_max: Float[Tensor, "head row col"]
    """The largest weight of each block."""
    n_permitted: Int[Tensor, "#head query"]
    """The number of keys that the mask permits to each query."""
    permitted: Int[Tensor, "query 2"]
    """The first key that the mask permits to a query in any head, and the one after the last; 0, 0 if there is none."""
    counted: Bool[Tensor, " query"]
    """False for queries that are padding."""
    between: Float[Tensor, "head group group"] | None = None
    """Σ of p from the queries of one group of positions, such as a document, to the keys of another; None without groups."""
    rows: Mapping[int, Float[Tensor, "head key"]] = field(default_factory=dict)
    """All weights of chosen queries, by their position; those of the last query are always there."""
    block: int = BLOCK

    @property
    def n_bytes(self) -> int:
        """The size of the sums in memory."""
        own = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in (*own, *self.rows.values()))

    @property
    def n_query(self) -> int:
        return self.entropy.shape[1]

    @property
    def n_key(self) -> int:
        return self.received.shape[1]


@dataclass(frozen=True, eq=False)
class Kept:
    """The inputs of one layer's attention, from which any of its weights can be computed again."""

    q: Float[Tensor, "head query d_head"]
    k: Float[Tensor, "group key d_head"]
    terms: Terms

    @property
    def n_bytes(self) -> int:
        """An upper bound of the memory: layers may share a mask or a bias."""
        terms = self.terms.added, self.terms.allowed, self.terms.bias
        return sum(one.nbytes for one in (self.q, self.k, *terms) if isinstance(one, Tensor))

    def weights(
        self, sums: AttentionSums, queries: slice, keys: slice, heads: slice = slice(None)
    ) -> Float[Tensor, "head query key"]:
        """The weights of a block of cells: exp(s − L)."""
        scores = self.scores(queries, keys, heads)
        log_normaliser = sums.log_normaliser[heads, queries, None].to(scores)
        return (scores - log_normaliser).exp().masked_fill(log_normaliser.isinf(), 0.0).cpu()

    def scores(
        self, queries: slice, keys: slice = slice(None), heads: slice = slice(None)
    ) -> Float[Tensor, "head query key"]:
        """The scores of a block of cells, −∞ where the mask forbids it."""
        k = for_each_head(self.k[None], len(self.q))[0, heads, keys]  # [head, key, d_head]
        scores = (self.q[heads, queries].float() * self.terms.scale) @ k.float().mT
        (begin, end, _), n_key = queries.indices(self.q.shape[1]), self.k.shape[1]
        rows = _Rows.of(self.terms, begin, end, n_key, scores.device).at_heads(heads).at_keys(keys, n_key)
        return rows.scores(scores, self.terms.softcap).masked_fill_(~rows.allowed, -math.inf)


@dataclass(eq=False)
class SummedRun:
    """What a run with sums computes: the sums of each layer, and the inputs of attention up to a limit of memory."""

    kept_bytes: int
    """The inputs of attention are kept, layer by layer, up to this size."""
    groups: Int[Tensor, " pos"] | None = None
    """The group of each position, such as its document, from 0."""
    valid: Bool[Tensor, " pos"] | None = None
    """False at padding; None if there is none."""
    queries: Sequence[int] = ()
    """The queries whose weights are all stored, besides the last one."""
    wanted: str | None = None
    """The path of the only layer whose inputs are kept, without any sums; the run ends there. None: all layers."""
    has_lazy_masks: bool = True
    """Whether masks are computed for a few queries at a time. False for a model that computes with its mask."""
    keep: Sequence[str] = ()
    """Globs of other activations to record, such as "*.z", for models that hand over their queries and keys."""
    step: Callable[[int], None] | None = None
    """Called with the number of layers that are summed up."""
    sums: dict[str, AttentionSums] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    activations: dict[str, Tensor] = field(default_factory=dict)
    """The recorded activations."""

    def attend(
        self,
        path: str | None,
        q: Float[Tensor, "1 head query d_head"],
        k: Float[Tensor, "1 group key d_head"],
        v: Float[Tensor, "1 group key d_value"],
        terms: Terms,
    ) -> Float[Tensor, "1 head query d_value"]:
        """z of one layer. Its sums are stored; with `wanted`, only the inputs of that layer."""
        if path is not None and self.wanted in (None, path):
            kept = Kept(q[0], k[0], terms)
            if path == self.wanted or sum(one.n_bytes for one in self.kept.values()) + kept.n_bytes <= self.kept_bytes:
                self.kept[path] = kept
        if self.wanted is not None and self.wanted in self.kept:
            raise StopForward
        if path is None or self.wanted is not None:
            return attend_in_blocks(q, k, v, terms)
        z, sums = attend_with_sums(q[0], k[0], v[0], terms, groups=self.groups, valid=self.valid, queries=self.queries)
        self._add(path, sums)
        return z[None]

    def take_pattern(
        self, path: str, pattern: Float[Tensor, "head query key"], allowed: Bool[Tensor, "head query key"]
    ) -> None:
        """Sum up the pattern of one layer."""
        sums = sums_of_pattern(pattern, allowed, groups=self.groups, valid=self.valid, queries=self.queries)
        self._add(path, sums)

    def _add(self, path: str, sums: AttentionSums) -> None:
        self.sums[path] = sums
        if self.step is not None:
            self.step(len(self.sums))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The mask and the biases of a few queries."""

    allowed: Bool[Tensor, "#head query key"]
    bias: Float[Tensor, "#head query key"] | None
    """Added to the scores before the softcap, or None."""
    added: Float[Tensor, "#head query key"] | None
    """The finite part of an additive mask, added after the softcap, or None."""

    @classmethod
    def of(cls, terms: Terms, begin: int, end: int, n_key: int, device: torch.device) -> _Rows:
        """Compute the rows of the queries from `begin` up to `end`."""
        added = None
        if isinstance(terms.allowed, LazyMask):
            allowed = terms.allowed.rows(begin, end)[..., :n_key]
        elif terms.allowed is not None:
            allowed = _first(terms.allowed)[:, begin:end, :n_key]
        elif terms.added is not None:
            rows = _first(terms.added)[:, begin:end, :n_key]
            allowed = rows > FORBIDDEN
            rest = rows.masked_fill(~allowed, 0.0)
            added = rest if bool(rest.any()) else None
        elif terms.is_causal:
            allowed = (torch.arange(n_key, device=device) <= torch.arange(begin, end, device=device)[:, None])[None]
        else:
            allowed = torch.ones(1, end - begin, n_key, dtype=torch.bool, device=device)
        bias = None if terms.bias is None else _first(terms.bias)[:, begin:end, :n_key]
        return cls(allowed.expand(-1, end - begin, -1), bias, added)

    def at_keys(self, keys: slice, width: int) -> _Rows:
        """Some of `width` keys, the last of which may be none."""
        return self._cut(lambda x: F.pad(x, (0, width - x.shape[-1]))[..., keys])

    def at_heads(self, heads: slice) -> _Rows:
        """Some heads."""
        return self._cut(lambda x: x if len(x) == 1 else x[heads])

    def _cut(self, cut: Callable[[Tensor], Tensor]) -> _Rows:
        return _Rows(cut(self.allowed), *(None if one is None else cut(one) for one in (self.bias, self.added)))

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


def _sinks(terms: Terms, heads: slice, begin: int, end: int) -> Float[Tensor, "head #query"] | None:
    """The scores of the sinks of some heads and queries, or None."""
    if terms.sinks is None:
        return None
    return terms.sinks[0, heads, begin:end, 0] if terms.sinks.dim() == 4 else terms.sinks.flatten()[heads, None]


@torch.no_grad()
def attend_with_sums(
    q: Float[Tensor, "head query d_head"],
    k: Float[Tensor, "group key d_head"],
    v: Float[Tensor, "group key d_value"],
    terms: Terms,
    *,
    groups: Int[Tensor, " pos"] | None = None,
    valid: Bool[Tensor, " pos"] | None = None,
    queries: Sequence[int] = (),
    block: int = BLOCK,
) -> tuple[Float[Tensor, "head query d_value"], AttentionSums]:
    """z, and the sums over the pattern.

    Args:
        q: The queries.
        k: The keys; head h reads those of group h · groups / heads (Ainslie et al. 2023).
        v: The values.
        terms: The scale, the mask and what else a family adds to its scores.
        groups: The group of each position, from 0; only where queries and keys are the same positions.
        valid: False at padding; only where queries and keys are the same positions.
        queries: The queries whose weights are all stored, besides the last one; those beyond the end are ignored.
        block: The side of the smallest blocks of cells.
    """
    (n_heads, n_query, _), (n_groups, n_key, _) = q.shape, k.shape
    is_own = n_query == n_key
    valid = valid if is_own and valid is not None and len(valid) == n_query else None
    groups = groups if is_own and groups is not None and len(groups) == n_query else None
    width = -(-n_key // block) * block
    k, v = F.pad(k.float(), (0, 0, 0, width - n_key)), F.pad(v.float(), (0, 0, 0, width - n_key))
    of_group = None if groups is None else F.pad(F.one_hot(groups.to(q.device)).float(), (0, 0, 0, width - n_key))
    counted = torch.ones(n_query, dtype=torch.bool, device=q.device) if valid is None else valid.to(q.device)
    first_key = int(counted.nonzero()[0]) if is_own and bool(counted.any()) else 0
    size = (n_heads, n_query)
    z = q.new_zeros((*size, v.shape[-1]), dtype=torch.float32)
    log_normaliser, entropy, largest, first = (q.new_zeros(size, dtype=torch.float32) for _ in range(4))
    largest_key = torch.zeros(size, dtype=torch.int64, device=q.device)
    received, by_offset = (q.new_zeros((n_heads, n), dtype=torch.float32) for n in (width, n_query + width - 1))
    block_sum, block_max = (
        q.new_zeros((n_heads, -(-n_query // block), width // block), dtype=torch.float32) for _ in range(2)
    )
    n_permitted: list[Tensor] = []
    permitted: list[Tensor] = []
    between = (
        None if of_group is None else q.new_zeros((n_heads, of_group.shape[1], of_group.shape[1]), dtype=torch.float32)
    )
    n_together = n_heads // n_groups
    stored = {at: q.new_zeros((n_heads, width), dtype=torch.float32) for at in {*queries, n_query - 1} if at < n_query}
    for begin, end in _row_ranges(n_query, block, n_together * width):
        n = end - begin
        rows = _Rows.of(terms, begin, end, n_key, q.device)
        n_permitted.append(rows.allowed.sum(-1))
        permitted.append(_ends(rows.allowed))
        left, right = _reach(rows.allowed, block)
        cells = slice(left, right)
        rows = rows.at_keys(cells, width)
        closed = ~rows.allowed  # [head or 1, row, key]
        partly = closed.any(0).any(0).nonzero()  # columns with a masked cell
        from_, to = (int(partly[0]), int(partly[-1]) + 1) if len(partly) else (0, 0)
        n_blocks, row = (right - left) // block, begin // block
        for group in range(n_groups):
            heads = slice(group * n_together, (group + 1) * n_together)
            of_heads = rows.at_heads(heads)
            products = (q[heads, begin:end].float() * terms.scale).flatten(0, 1) @ k[group, cells].mT
            s = products.view(n_together, n, right - left)  # [head, row, key]
            s = of_heads.scores(s, terms.softcap)
            s[..., from_:to].masked_fill_(~of_heads.allowed[..., from_:to], LOWEST)
            in_blocks = s.unflatten(-1, (n_blocks, block))
            block_high = in_blocks.amax(-1)  # [head, row, block]
            peak, at = block_high.max(-1)  # [head, row]
            at_key = at * block + in_blocks.gather(2, at[..., None, None].expand(-1, -1, 1, block))[:, :, 0].argmax(-1)
            is_empty, sink = peak <= LOWEST / 2, _sinks(terms, heads, begin, end)
            high = peak if sink is None else torch.where(is_empty, peak, torch.maximum(peak, sink.float()))
            s.sub_(high[..., None])
            padded = s.new_empty(n_together, n + n * (right - left + n))
            e = padded[:, n:].view(n_together, n, right - left + n)  # [head, row, key], with zeros around each row
            padded[:, :n], e[..., right - left :] = 0, 0
            e = e[..., : right - left]
            torch.exp(s, out=e)
            total = e.sum(-1)
            s.mul_(e)  # Σ p (s − high), with which the entropy needs no logarithm of each weight
            whole = total if sink is None else torch.where(is_empty, 1.0, total + (sink - high).exp())
            over = torch.where(is_empty, 0.0, 1 / whole)  # [head, row]
            z[heads, begin:end] = (e @ v[group, cells]) * over[..., None]
            entropy[heads, begin:end] = (total * whole.log() - s.sum(-1)) * over
            log_normaliser[heads, begin:end] = torch.where(is_empty, -math.inf, high + whole.log())
            largest[heads, begin:end] = (peak - high).exp() * over
            largest_key[heads, begin:end] = left + at_key
            if left <= first_key < right:
                first[heads, begin:end] = e[..., first_key - left] * over
            for at in stored.keys() & range(begin, end):
                stored[at][heads, cells] = e[:, at - begin] * over[:, at - begin, None]
            over = over * counted[begin:end]
            columns = (over[:, None] @ e)[:, 0]  # [head, key]
            received[heads, cells] += columns
            blocks = slice(left // block, right // block)
            block_sum[heads, row, blocks] += columns.unflatten(-1, (n_blocks, block)).sum(-1)
            highest = ((block_high - high[..., None]).exp() * over[..., None]).amax(1)  # [head, block]
            block_max[heads, row, blocks] = torch.maximum(block_max[heads, row, blocks], highest)
            # Row r shifted by r, so that a column has one offset: its first is that of key `left` − n + 1 in row 0.
            shifted = padded.as_strided(
                (n_together, n, right - left + n - 1), (padded.stride(0), right - left + n + 1, 1), 1
            )
            start = (left - n + 1 - begin) + (n_query - 1)  # of the offset in `by_offset`
            along = (over[:, None] @ shifted)[:, 0]
            skip = max(0, -start)
            by_offset[heads, start + skip : start + along.shape[1]] += along[:, skip:]
            if of_group is not None and between is not None:
                weights = (e @ of_group[cells]) * over[..., None]  # [head, row, group]
                between[heads] += of_group[begin:end].mT @ weights
    sums = AttentionSums(
        log_normaliser.cpu(), entropy.cpu(), largest.cpu(), largest_key.cpu(), first.cpu(), received[:, :n_key].cpu(),
        by_offset[:, : n_query + n_key - 1].cpu(), block_sum.cpu(), block_max.cpu(), torch.cat(n_permitted, dim=-1).cpu(),
        torch.cat(permitted).cpu(),
        counted.cpu(), None if between is None else between.cpu(),
        {at: row[:, :n_key].cpu() for at, row in stored.items()}, block,
    )  # fmt: skip
    return z.to(q.dtype), sums


@torch.no_grad()
def attend_in_blocks(
    q: Float[Tensor, "1 head query d_head"],
    k: Float[Tensor, "1 group key d_head"],
    v: Float[Tensor, "1 group key d_value"],
    terms: Terms,
) -> Float[Tensor, "1 head query d_value"]:
    """z alone, from PyTorch's fused kernel for a few hundred queries at a time."""
    (_, n_heads, n_query, _), n_key = q.shape, k.shape[2]
    if terms.softcap is not None or terms.sinks is not None:
        return attend_with_sums(q[0], k[0], v[0], terms)[0][None]
    k, v = for_each_head(k, n_heads), for_each_head(v, n_heads)
    z = []
    for begin in range(0, n_query, 2 * BLOCK):
        end = min(begin + 2 * BLOCK, n_query)
        rows = _Rows.of(terms, begin, end, n_key, q.device)
        left, right = _reach(rows.allowed, 1)
        rows = rows.at_keys(slice(left, right), n_key)
        biases = [one for one in (rows.bias, rows.added) if one is not None]
        mask = rows.allowed
        if biases:
            mask = sum(biases[1:], biases[0]).to(q.dtype).masked_fill(~rows.allowed, -math.inf)
        given = q[:, :, begin:end], k[:, :, left:right], v[:, :, left:right]
        z.append(F.scaled_dot_product_attention(*given, attn_mask=mask[None], scale=terms.scale))
    return torch.cat(z, dim=2)


def _row_ranges(n_query: int, block: int, n_cells: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries, each within one block; `n_cells` is the number of cells of one row."""
    n = block
    while n > 8 and n * n_cells > 2 * CELLS:
        n //= 2
    for begin in range(0, n_query, n):
        yield begin, min(begin + n, n_query)


def _ends(allowed: Bool[Tensor, "#head query key"]) -> Int[Tensor, "query 2"]:
    """The first key that is permitted to a query in any head, and the one after the last; 0, 0 if there is none."""
    any_head = allowed.any(0).to(torch.uint8)  # [query, key]
    ends = torch.stack([any_head.argmax(-1), any_head.shape[-1] - any_head.flip(-1).argmax(-1)], dim=-1)
    return ends * any_head.any(-1, keepdim=True)


def _reach(allowed: Bool[Tensor, "#head query key"], block: int) -> tuple[int, int]:
    """The range of keys that any query may attend to, in whole blocks; one block if there are none."""
    keys = allowed.any(0).any(0).nonzero()
    return (int(keys[0]) // block * block, -(-(int(keys[-1]) + 1) // block) * block) if len(keys) else (0, block)


def sums_of_pattern(
    pattern: Float[Tensor, "head query key"],
    allowed: Bool[Tensor, "#head query key"],
    *,
    groups: Int[Tensor, " pos"] | None = None,
    valid: Bool[Tensor, " pos"] | None = None,
    queries: Sequence[int] = (),
    block: int = BLOCK,
) -> AttentionSums:
    """The same sums of a pattern that is in memory, for models whose queries and keys are not handed to xformer.

    The logarithm of each weight takes the place of its score, so that every sum is computed in one place.
    """
    if not bool((pattern >= 0).all()):  # also NaN
        raise InputError("This layer has weights below 0 or NaN, so its attention cannot be summed up.")
    scores = pattern.float().log()  # [head, query, key]; −∞ where there is no weight
    n_heads, n_query, n_key = pattern.shape
    missing = (1 - pattern.float().sum(-1, keepdim=True)).clamp(min=0.0)  # the weight of a sink
    terms = Terms(1.0, allowed=(pattern > 0)[None], bias=scores.nan_to_num(neginf=0.0)[None], sinks=missing.log()[None])
    q, k = (torch.zeros(n_heads, n, 1) for n in (n_query, n_key))
    sums = attend_with_sums(q, k, k, terms, groups=groups, valid=valid, queries=queries, block=block)[1]
    # A permitted key may have a weight of 0.
    return replace(sums, n_permitted=allowed.sum(-1).cpu(), permitted=_ends(allowed).cpu())


class SumsTape(Tape):
    """Sums up each pattern when the model has computed it, for models whose queries and keys are not handed to xformer."""

    def __init__(self, run: SummedRun) -> None:
        super().__init__((), ())
        self._run = run
        self._mask: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return the activation as it is."""
        path, _, what = name.rpartition(".")
        if what == "mask":
            self._mask[path] = value
        elif what == "pattern":
            mask = self._mask.pop(path, None)
            allowed = torch.ones_like(value, dtype=torch.bool) if mask is None else mask
            self._run.take_pattern(path, value[0], allowed[0])
        return value
