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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters.attention import Terms, for_each_head
from xformer.adapters.mask_rows import MaskRows, Span
from xformer.errors import InputError
from xformer.tape import StopForward, Tape

CELLS = 5_000_000
"""The number of scores that are computed at once, 20 MB. With fewer, threads wait for each other; more leave the cache."""
BLOCK = 128
"""The side of the smallest blocks of cells with a mean and a maximum."""
LOWEST = -1e30
"""The score of a masked cell. It is finite, because 0 · −∞ is NaN; its weight is exactly 0."""


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
        rows = MaskRows.of(self.terms, begin, end, n_key, scores.device).at_heads(heads).at_keys(keys)
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


def _sinks(terms: Terms, queries: slice) -> Float[Tensor, "head #query"] | None:
    """The scores of the sinks of some queries, or None."""
    if terms.sinks is None:
        return None
    return terms.sinks[0, :, queries, 0] if terms.sinks.dim() == 4 else terms.sinks.flatten()[:, None]


class _Pass:
    """One pass over the queries of a layer: z, and the sums over the pattern so far."""

    def __init__(
        self,
        q: Float[Tensor, "head query d_head"],
        k: Float[Tensor, "group key d_head"],
        v: Float[Tensor, "group key d_value"],
        terms: Terms,
        groups: Int[Tensor, " pos"] | None,
        valid: Bool[Tensor, " pos"] | None,
        queries: Sequence[int],
        block: int,
    ) -> None:
        (self.n_heads, self.n_query, _), (self.n_groups, self.n_key, _) = q.shape, k.shape
        is_own = self.n_query == self.n_key
        valid = valid if is_own and valid is not None and len(valid) == self.n_query else None
        groups = groups if is_own and groups is not None and len(groups) == self.n_query else None
        width = -(-self.n_key // block) * block
        after = (0, 0, 0, width - self.n_key)
        self.q, self.v, self.terms = q, F.pad(v.float(), after), terms
        self.k = F.pad(k.float(), after).mT.contiguous()  # [group, d_head, key], of which a few queries read all keys
        self.of_group = None if groups is None else F.pad(F.one_hot(groups.to(q.device)).float(), after)
        self.counted = torch.ones(self.n_query, dtype=torch.bool) if valid is None else valid
        self.counted = self.counted.to(q.device)
        self.first_key = int(self.counted.nonzero()[0]) if is_own and bool(self.counted.any()) else 0
        self.block, self.n_rows = block, block
        while self.n_rows > 8 and self.n_rows * self.n_heads * width > CELLS:
            self.n_rows //= 2
        n = self.n_rows

        def zeros(*shape: int) -> Tensor:
            return q.new_zeros((self.n_heads, *shape), dtype=torch.float32)

        self.z = zeros(self.n_query, v.shape[-1])
        self.peak, self.high, self.total, self.whole, self.weighted, self.first = (
            zeros(self.n_query) for _ in range(6)
        )
        self.largest_key = torch.zeros_like(self.peak, dtype=torch.int64)
        self.received, self.by_offset = zeros(width), zeros(self.n_query + width - 1)
        self.block_sum, self.block_max = (zeros(-(-self.n_query // block), width // block) for _ in range(2))
        self.between = None if self.of_group is None else zeros(self.of_group.shape[1], self.of_group.shape[1])
        self.stored = {at: zeros(width) for at in {*queries, self.n_query - 1} if at < self.n_query}
        # Not a list of parts: each would lie between two ever larger blocks of memory, which could not be used again.
        self.n_permitted = torch.zeros((0, self.n_query), dtype=torch.int64)
        self.permitted = torch.zeros((self.n_query, 2), dtype=torch.int64)
        # Memory for all blocks: scores, and their exponentials with n zeros before the first row and after each.
        self._scores = q.new_empty(self.n_heads * n * width, dtype=torch.float32)
        self._exponentials = q.new_zeros(n + self.n_heads * n * (width + n), dtype=torch.float32)

    def add_all(self) -> None:
        """Compute all queries, each a part of one block."""
        for begin in range(0, self.n_query, self.n_rows):
            end = min(begin + self.n_rows, self.n_query)
            span = Span.of(MaskRows.of(self.terms, begin, end, self.n_key, self.q.device), begin, self.block)
            if begin == 0:
                self.n_permitted = self.n_permitted.new_zeros((len(span.n_permitted), self.n_query))
            self.n_permitted[:, span.queries], self.permitted[span.queries] = span.n_permitted, span.permitted
            self._add(span)

    def _add(self, span: Span) -> None:
        """Compute some queries of all heads."""
        at, cells = span.queries, span.keys
        s = self._scores_of(span)
        in_blocks = s.unflatten(-1, (-1, self.block))
        block_high = in_blocks.amax(-1)  # [head, row, block]
        peak, best = block_high.max(-1)  # [head, row]
        within = in_blocks.gather(2, best[..., None, None].expand(-1, -1, 1, self.block))[:, :, 0].argmax(-1)
        is_empty, sink = peak <= LOWEST / 2, _sinks(self.terms, at)
        high = peak if sink is None else torch.where(is_empty, peak, torch.maximum(peak, sink.float()))
        s.sub_(high[..., None])
        e, shifted = self._exponentials_of(s)
        total = e.sum(-1)
        s.mul_(e)
        whole = total if sink is None else torch.where(is_empty, 1.0, total + (sink - high).exp())
        over = torch.where(is_empty, 0.0, 1 / whole)  # [head, row]
        z = e.view(self.n_groups, -1, s.shape[-1]) @ self.v[:, cells]  # [group, head · row, d_value]
        self.z[:, at] = z.view(*over.shape, -1) * over[..., None]
        self.peak[:, at], self.high[:, at], self.total[:, at], self.whole[:, at] = peak, high, total, whole
        self.weighted[:, at] = s.sum(-1)
        self.largest_key[:, at] = cells.start + best * self.block + within
        if cells.start <= self.first_key < cells.stop:
            self.first[:, at] = e[..., self.first_key - cells.start] * over
        for query in self.stored.keys() & range(at.start, at.stop):
            row = query - at.start
            self.stored[query][:, cells] = e[:, row] * over[:, row, None]
        over = over * self.counted[at]
        self._add_columns(span, (over[:, None] @ e)[:, 0], (block_high - high[..., None]).exp() * over[..., None])
        self._add_offsets(span, (over[:, None] @ shifted)[:, 0])
        if self.of_group is not None and self.between is not None:
            weights = (e @ self.of_group[cells]) * over[..., None]  # [head, row, group]
            self.between += self.of_group[at].mT @ weights

    def _scores_of(self, span: Span) -> Float[Tensor, "head row key"]:
        """The scores of some queries; the lowest number where the mask forbids a key."""
        rows, (n, width) = span.rows, span.rows.allowed.shape[1:]
        q = (self.q[:, span.queries].float() * self.terms.scale).reshape(self.n_groups, -1, self.q.shape[-1])
        s = self._scores[: self.n_heads * n * width].view(*q.shape[:2], width)  # [group, head · row, key]
        s = torch.bmm(q, self.k[..., span.keys], out=s).view(self.n_heads, n, width)
        s = rows.scores(s, self.terms.softcap)
        s[..., span.hidden].masked_fill_(~rows.allowed[..., span.hidden], LOWEST)
        return s

    def _exponentials_of(
        self, s: Float[Tensor, "head row key"]
    ) -> tuple[Float[Tensor, "head row key"], Float[Tensor, "head row offset"]]:
        """exp s, and the same with row r shifted by r, so that a column has one offset from query to key."""
        n_heads, n, width = s.shape
        stride = self.received.shape[1] + self.n_rows  # of a row
        e = self._exponentials[self.n_rows :][: n_heads * n * stride].view(n_heads, n, stride)
        e[..., width : width + n] = 0
        e = e[..., :width]
        torch.exp(s, out=e)
        shape, strides = (n_heads, n, width + n - 1), (n * stride, stride + 1, 1)
        return e, self._exponentials.as_strided(shape, strides, self.n_rows - n + 1)

    def _add_columns(
        self, span: Span, columns: Float[Tensor, "head key"], highest: Float[Tensor, "head row block"]
    ) -> None:
        """Add the sums over some queries for each key, and take the largest weights of blocks."""
        self.received[:, span.keys] += columns
        row = span.queries.start // self.block
        blocks = slice(span.keys.start // self.block, span.keys.stop // self.block)
        self.block_sum[:, row, blocks] += columns.unflatten(-1, (-1, self.block)).sum(-1)
        of_blocks = self.block_max[:, row, blocks]
        torch.maximum(of_blocks, highest.amax(1), out=of_blocks)

    def _add_offsets(self, span: Span, along: Float[Tensor, "head offset"]) -> None:
        """Add the sums over some queries for each offset, the first of which is that of the last query to the first key."""
        start = (span.keys.start - (span.queries.stop - 1)) + (self.n_query - 1)
        skip = max(0, -start)
        self.by_offset[:, start + skip : start + along.shape[1]] += along[:, skip:]

    def result(self) -> AttentionSums:
        """The sums, in the memory of the CPU."""
        is_empty, ln_whole = self.peak <= LOWEST / 2, self.whole.log()
        log_normaliser = torch.where(is_empty, -math.inf, self.high + ln_whole)
        # −Σ p ln p from Σ e (s − high), without the logarithm of each weight
        entropy = torch.where(is_empty, 0.0, (self.total * ln_whole - self.weighted) / self.whole)
        largest = torch.where(is_empty, 0.0, (self.peak - self.high).exp() / self.whole)
        n_offsets = self.n_query + self.n_key - 1
        return AttentionSums(
            log_normaliser=log_normaliser.cpu(),
            entropy=entropy.cpu(),
            largest=largest.cpu(),
            largest_key=self.largest_key.cpu(),
            first=self.first.cpu(),
            received=self.received[:, : self.n_key].cpu(),
            by_offset=self.by_offset[:, :n_offsets].cpu(),
            block_sum=self.block_sum.cpu(),
            block_max=self.block_max.cpu(),
            n_permitted=self.n_permitted,
            permitted=self.permitted,
            counted=self.counted.cpu(),
            between=None if self.between is None else self.between.cpu(),
            rows={at: row[:, : self.n_key].cpu() for at, row in self.stored.items()},
            block=self.block,
        )


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
    sums = _Pass(q, k, v, terms, groups, valid, queries, block)
    sums.add_all()
    return sums.z.to(q.dtype), sums.result()


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
        span = Span.of(MaskRows.of(terms, begin, end, n_key, q.device), begin, 1)
        rows, cells = span.rows, span.keys
        biases = [one for one in (rows.bias, rows.added) if one is not None]
        mask = rows.allowed
        if biases:
            mask = sum(biases[1:], biases[0]).to(q.dtype).masked_fill(~rows.allowed, -math.inf)
        given = q[:, :, span.queries], k[:, :, cells], v[:, :, cells]
        z.append(F.scaled_dot_product_attention(*given, attn_mask=mask[None], scale=terms.scale))
    return torch.cat(z, dim=2)


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
    q, k = (pattern.new_zeros((n_heads, n, 1), dtype=torch.float32) for n in (n_query, n_key))
    sums = attend_with_sums(q, k, k, terms, groups=groups, valid=valid, queries=queries, block=block)[1]
    # A permitted key may have a weight of 0.
    span = Span.of(MaskRows(allowed, None, None), 0, block)
    return replace(sums, n_permitted=span.n_permitted, permitted=span.permitted)


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
