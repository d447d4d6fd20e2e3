"""Masks of any origin as one kind of object, whose cells are computed where they are needed.

mask = as_mask(lambda b, h, q, k: q >= k, n_query=32_768)
mask.cells(queries=(0, 8), keys=(0, 8))  # [query, key]
mask.counts()  # the allowed cells of each block of 128 × 128
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from xformer.adapters.attention import permitted
from xformer.errors import InputError
from xformer.formatting import check_index, error_message
from xformer.masks.bounds import UNKNOWN, Pair, block_states
from xformer.masks.rules import Rule

BLOCK = 128
"""The positions of a block on each axis, as in FlexAttention."""
INNER = 32
"""The positions of the smaller blocks into which a block is divided if it is neither allowed nor forbidden as a whole."""
BATCH = 2**17
"""The number of cells that are evaluated at a time; their tensors fit into a cache."""
MAX_DENSE = 2**28
"""The most cells of a mask that is written out."""
Span = tuple[int, int]
"""The first position, and the one after the last."""


@dataclass(frozen=True, eq=False)
class Mask(ABC):
    """Which keys each query may attend to, for each row of a batch and each head.

    Attributes:
        n_query: The number of queries.
        n_key: The number of keys.
        n_batch: The number of inputs whose masks differ; 1 if all have the same.
        n_heads: The number of heads whose masks differ; 1 if all have the same.
        first_query: The position of the first query among the keys; None if it is not known.

    Example:
        >>> from xformer import masks
        >>> mask = masks.as_mask(masks.causal(), n_query=32_768)
        >>> mask.cells(queries=(20_000, 20_001), keys=(19_999, 20_002))
        tensor([[ True,  True, False]])
    """

    n_query: int
    n_key: int
    n_batch: int = 1
    n_heads: int = 1
    first_query: int | None = None

    @abstractmethod
    def at(
        self, batch: int, head: int, queries: Int[Tensor, "*query"], keys: Int[Tensor, "*key"]
    ) -> Bool[Tensor, "*cell"]:
        """Return whether queries may attend to keys; the indices are valid and broadcast to one shape."""

    def states(self, batch: int, head: int, queries: Pair, keys: Pair) -> Int8[Tensor, "*block"]:
        """Return which blocks are allowed (1) or forbidden (0) as a whole; `UNKNOWN` where the cells must be evaluated.

        Args:
            batch: The input.
            head: The head.
            queries: The first and the last query of each block.
            keys: The first and the last key of each block; they broadcast with the queries.
        """
        return torch.full(torch.broadcast_shapes(queries[0].shape, keys[0].shape), UNKNOWN, dtype=torch.int8)

    def cells(
        self, batch: int = 0, head: int = 0, queries: Span | None = None, keys: Span | None = None
    ) -> Bool[Tensor, "query key"]:
        """Return the cells of one input and head: true where the query may attend to the key.

        Args:
            batch: The input, from 0.
            head: The head, from 0.
            queries: The first query, and the one after the last; None: all.
            keys: The first key, and the one after the last; None: all.

        Raises:
            InputError: If there are no such cells, or more than `MAX_DENSE`.

        Example:
            >>> from xformer import masks
            >>> masks.as_mask(masks.causal(), n_query=3).cells()
            tensor([[ True, False, False],
                    [ True,  True, False],
                    [ True,  True,  True]])
        """
        check_index("batch", batch, self.n_batch)
        check_index("head", head, self.n_heads)
        rows, columns = checked_span("queries", queries, self.n_query), checked_span("keys", keys, self.n_key)
        if (n := (rows[1] - rows[0]) * (columns[1] - columns[0])) > MAX_DENSE:
            raise InputError(
                f"cells returns at most {MAX_DENSE:,} cells, got {n:,}; select some with queries= and keys=."
            )
        step = max(1, BATCH // (columns[1] - columns[0]))
        k = torch.arange(*columns)[None]
        parts = [torch.arange(at, min(at + step, rows[1]))[:, None] for at in range(rows[0], rows[1], step)]
        return torch.cat([self.at(batch, head, q, k) for q in parts])

    def counts(self, batch: int = 0, head: int = 0, block: int = BLOCK) -> Int[Tensor, "query_block key_block"]:
        """Return the number of allowed cells of each block.

        Args:
            batch: The input, from 0.
            head: The head, from 0.
            block: The positions of a block on each axis; the last blocks may have fewer.

        Example:
            >>> from xformer import masks
            >>> masks.as_mask(masks.causal(), n_query=256).counts()
            tensor([[ 8256,     0],
                    [16384,  8256]])
        """
        check_index("block", block, least=1)
        return tally([(self, batch, head)], lambda cells: [cells[0]], block=block)[0]


def tally(
    places: Sequence[tuple[Mask, int, int]],
    combine: Callable[[list[Tensor]], list[Tensor]],
    *,
    block: int = BLOCK,
    rows: Bool[Tensor, " query"] | None = None,
) -> list[Int[Tensor, "query_block key_block"]]:
    """Count cells in the blocks of masks of one size, exactly: blocks are divided, and evaluated, only where they must be.

    Args:
        places: Masks, each with an input and a head.
        combine: A function from the cells of all masks to the cells to count, one tensor for each count.
        block: The positions of a block on each axis.
        rows: The queries that count; None: all.
    """
    n_query, n_key = places[0][0].n_query, places[0][0].n_key
    sizes, ends = torch.tensor([n_query, n_key]), torch.tensor([n_query - 1, n_key - 1])
    grid = torch.cartesian_prod(torch.arange(0, n_query, block), torch.arange(0, n_key, block))  # [block, axis]
    weights = torch.ones(n_query, dtype=torch.int64) if rows is None else rows.long()
    below = torch.cat([torch.zeros(1, dtype=torch.int64), weights.cumsum(0)])  # [query]
    counts: list[Tensor] = []

    def add(block_index: Tensor, values: Sequence[Tensor]) -> None:
        if not counts:
            counts.extend(torch.zeros(len(grid), dtype=torch.int64) for _ in values)
        for count, value in zip(counts, values, strict=True):
            count.index_add_(0, block_index, value)

    def decided(first: Tensor, side: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """Count the blocks that are known as a whole, and return the others."""
        last = torch.minimum(first + side - 1, ends)
        pairs = tuple((first[:, axis].contiguous(), last[:, axis].contiguous()) for axis in (0, 1))
        states = [mask.states(batch, head, pairs[0], pairs[1]) for mask, batch, head in places]
        known = torch.stack([state != UNKNOWN for state in states]).all(dim=0)
        area = (below[last[:, 0] + 1] - below[first[:, 0]]) * (last[:, 1] - first[:, 1] + 1)
        add(index[known], [one[known] * area[known] for one in combine([state == 1 for state in states])])
        return first[~known], index[~known]

    side = INNER if block % INNER == 0 else block
    step = max(1, BATCH // side**2)
    inner = torch.cartesian_prod(torch.arange(0, block, side), torch.arange(0, block, side))  # [part, axis]
    offsets = torch.arange(side)
    for first, index in _batches(*decided(grid, block, torch.arange(len(grid))), max(1, BATCH // len(inner))):
        first, index = (first[:, None] + inner).flatten(0, 1), index.repeat_interleave(len(inner))
        exists = (first < sizes).all(dim=1)
        for start, at in _batches(*decided(first[exists], side, index[exists]), step):
            q, k = (start[:, axis, None] + offsets for axis in (0, 1))  # [block, position]
            counted = ((q < n_query) & weights[q.clamp(max=n_query - 1)].bool())[:, :, None] & (k < n_key)[:, None]
            q, k = q.clamp(max=n_query - 1)[:, :, None], k.clamp(max=n_key - 1)[:, None]
            cells = [mask.at(batch, head, q, k) for mask, batch, head in places]
            add(at, [(one & counted).flatten(1).sum(dim=1) for one in combine(cells)])
    shape = (-(-n_query // block), -(-n_key // block))
    return [count.view(shape) for count in counts]


def _batches(first: Tensor, index: Tensor, n: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(first.split(n), index.split(n), strict=True) if len(first) else iter(())


def checked_span(name: str, span: Any, n: int) -> Span:
    """Return a range of positions. Raises `InputError` unless it is None or (first, after last) within `n`."""
    if span is None:
        return 0, n
    try:
        first, stop = span
    except (TypeError, ValueError):
        raise InputError(f"{name} must be (first, after last), such as (0, {n}), got {span!r:.100}.") from None
    check_index(name, first, n)
    check_index(name, stop, n + 1)
    if first >= stop:
        raise InputError(f"{name} must be (first, after last), such as (0, {n}), got {span!r:.100}.")
    return first, stop


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseMask(Mask):
    """A mask that is stored as a boolean tensor [batch, head, query, key]."""

    dense: Bool[Tensor, "batch head query key"]

    def at(self, batch: int, head: int, queries: Tensor, keys: Tensor) -> Bool[Tensor, "*cell"]:
        """Return the stored cells."""
        return self.dense[batch, head][queries, keys]


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMask(Mask):
    """A mask that is computed by a function of batch, head, query and key.

    Attributes:
        function: A `mask_mod(b, h, q, k)` or `score_mod(score, b, h, q, k)`.
        is_score: Whether it is a score_mod, which forbids a cell where it returns −∞ for a score of 0.
        offset: What is added to the queries' indices before the function is called.
    """

    function: Callable[..., Any]
    is_score: bool = False
    offset: int = 0
    _broadcasts: dict[tuple[int, int], bool] = field(default_factory=dict, init=False, repr=False)

    def _leading(self, batch: int, head: int) -> list[Tensor]:
        return [torch.tensor(0.0)] * self.is_score + [torch.tensor(batch), torch.tensor(head)]

    def _followed(self, batch: int, head: int, queries: Pair, keys: Pair) -> tuple[Int8[Tensor, "*block"], bool] | None:
        shifted = queries[0] + self.offset, queries[1] + self.offset
        try:
            return block_states(self.function, self._leading(batch, head), shifted, keys, is_score=self.is_score)
        except (
            Exception
        ):  # not followed, or fails on columns; `create_mask` decides whether it is a mask function at all
            return None

    def states(self, batch: int, head: int, queries: Pair, keys: Pair) -> Int8[Tensor, "*block"]:
        """Return the states that follow from the bounds of the positions of each block."""
        found = self._followed(batch, head, queries, keys)
        return super().states(batch, head, queries, keys) if found is None else found[0]

    def _is_broadcast(self, batch: int, head: int) -> bool:
        """Whether calling the function with a column of queries and a row of keys gives the cells one by one."""
        if (batch, head) not in self._broadcasts:
            spans = ((torch.tensor([[0]]), torch.tensor([[n - 1]])) for n in (self.n_query, self.n_key))
            found = self._followed(batch, head, *spans)
            self._broadcasts[batch, head] = found is not None and found[1]
        return self._broadcasts[batch, head]

    def at(self, batch: int, head: int, queries: Tensor, keys: Tensor) -> Bool[Tensor, "*cell"]:
        """Evaluate the function at these cells."""
        shape = torch.broadcast_shapes(queries.shape, keys.shape)
        leading = self._leading(batch, head)

        def allowed(q: Tensor, k: Tensor) -> Tensor:
            found = self.function(*leading, q, k)
            found = found if isinstance(found, Tensor) else torch.tensor(found)
            return found != -torch.inf if self.is_score else found != 0

        if self._is_broadcast(batch, head):
            return allowed(queries + self.offset, keys).expand(shape)
        flat = [one.expand(shape).flatten() for one in (queries + self.offset, keys)]
        try:  # FlexAttention's own evaluation, of a list of cells
            found = create_mask(
                lambda b, h, q, k: allowed(flat[0][k], flat[1][k]), None, None, 1, len(flat[0]), device="cpu"
            )
        except Exception as error:
            raise InputError(
                "A mask function takes indices (b, h, q, k) as scalar tensors and returns one boolean without branching "
                f"on them, as FlexAttention requires; this one fails: {error_message(error, 200)}"
            ) from error
        if found.numel() != len(flat[0]):
            raise InputError(
                "A mask function returns one boolean for each cell; this one returns more, as with a table without an index."
            )
        return found.view(shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelMask(Mask):
    """What FlexAttention computes with a `BlockMask`: its lists of blocks, and its `mask_mod` in partial blocks.

    Attributes:
        mod: Its `mask_mod`, as a mask.
        listed: 0, 1 or `UNKNOWN` (partial) for each block, [batch, head, query_block, key_block].
        size: The queries and keys of a block.
    """

    mod: FunctionMask
    listed: Int8[Tensor, "batch head query_block key_block"]
    size: tuple[int, int]

    def states(self, batch: int, head: int, queries: Pair, keys: Pair) -> Int8[Tensor, "*block"]:
        """Return the listed states, and in partial blocks those of the `mask_mod`."""
        (first_q, last_q), (first_k, last_k) = (
            (one[0] // size, one[1] // size) for one, size in zip((queries, keys), self.size, strict=True)
        )
        listed = self.listed[batch, head][first_q, first_k]
        is_one_block = (first_q == last_q) & (first_k == last_k)
        inner = self.mod.states(batch, head, queries, keys)
        return torch.where(is_one_block, torch.where(listed == UNKNOWN, inner, listed), UNKNOWN)

    def at(self, batch: int, head: int, queries: Tensor, keys: Tensor) -> Bool[Tensor, "*cell"]:
        """Return the cells that the kernel computes."""
        listed = self.listed[batch, head][queries // self.size[0], keys // self.size[1]]
        return torch.where(listed == UNKNOWN, self.mod.at(batch, head, queries, keys), listed == 1)


def as_mask(
    source: Any,
    *,
    n_query: int | None = None,
    n_key: int | None = None,
    n_batch: int = 1,
    n_heads: int = 1,
    first_query: int | None = None,
) -> Mask:
    """Return a mask of any origin.

    Args:
        source: A mask; a rule; a function `mask_mod(b, h, q, k)` or `score_mod(score, b, h, q, k)`, which forbids by −∞; a
            `BlockMask` of FlexAttention, which means what the kernel computes; a boolean tensor, true where a query may attend,
            or an additive one, with −∞, −10,000 or less where it may not: [query, key], [batch, query, key] or [batch, head,
            query, key]. A mask of keys [batch, key] is `padding(valid)`, or an argument of `transformers_mask`.
        n_query: The number of queries of a rule or function.
        n_key: The number of keys of a rule or function; None: as many as queries.
        n_batch: The number of inputs for which a function is called.
        n_heads: The number of heads for which a function is called.
        first_query: The position of the first query among the keys, as with a cache; None: 0 if there are as many keys as
            queries.

    Returns:
        The mask. Its cells are computed where they are needed.

    Raises:
        InputError: If the source is not a mask, or its sizes are missing.

    Example:
        >>> from xformer import masks
        >>> masks.as_mask(lambda b, h, q, k: q - k < 4, n_query=16).cells(queries=(5, 6), keys=(0, 4))
        tensor([[False, False,  True,  True]])
    """
    if first_query is not None:
        check_index("first_query", first_query, least=None)
    if isinstance(source, Mask):
        return source
    if isinstance(source, Tensor):
        return _dense(source, first_query)
    if isinstance(source, BlockMask):
        return _kernel(source, first_query)
    if not callable(source):
        raise InputError(
            f"A mask is a tensor, a BlockMask, a rule such as causal(), or a function of (b, h, q, k), got {source!r:.100}."
        )
    if n_query is None:
        raise InputError("A rule or function has no size of its own; give n_query=, such as n_query=128.")
    n_key = n_query if n_key is None else n_key
    for name, value in (("n_query", n_query), ("n_key", n_key), ("n_batch", n_batch), ("n_heads", n_heads)):
        check_index(name, value, least=1)
    start = _start(first_query, n_query, n_key) if isinstance(source, Rule) else first_query
    if start is None and n_query == n_key:
        start = 0
    if isinstance(source, Rule):
        source.check_size(n_key)
        return FunctionMask(
            n_query, n_key, source.n_batch or n_batch, n_heads, start, function=source, offset=start or 0
        )
    n = _arguments(source)
    return FunctionMask(n_query, n_key, n_batch, n_heads, start, function=source, is_score=n == 5)


def _start(first_query: int | None, n_query: int, n_key: int) -> int:
    """Return the position of the first query. Raises `InputError` if it must be given."""
    if first_query is not None or n_query == n_key:
        return first_query or 0
    raise InputError(
        f"With {n_query} queries and {n_key} keys, first_query= must say which key is at the first query: "
        f"{n_key - n_query} if the queries are the last positions, 0 if they are the first ones."
    )


def _arguments(function: Callable[..., Any]) -> int:
    """Return 4 for a mask_mod and 5 for a score_mod. Raises `InputError` otherwise."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 4
    required = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 4
    if len(required) not in (4, 5):
        raise InputError(
            "A mask function takes (b, h, q, k), and a score function (score, b, h, q, k); this one takes "
            f"{len(required)} arguments."
        )
    return len(required)


def _dense(source: Tensor, first_query: int | None) -> DenseMask:
    if source.dim() not in (2, 3, 4) or not source.numel():
        raise InputError(
            "A mask tensor is [query, key], [batch, query, key] or [batch, head, query, key], got shape "
            f"{tuple(source.shape)}."
        )
    source = source.detach().to("cpu")
    if source.is_floating_point():
        if bool(source.isnan().any()):
            raise InputError("An additive mask must not have NaN.")
        if bool((source == 1).any()) and bool(((source == 0) | (source == 1)).all()):
            raise InputError(
                "A mask of zeros and ones as floats is ambiguous: as an additive mask, it forbids nothing. Pass mask.bool() if "
                "1 means allowed."
            )
        source = permitted(source)
    elif source.dtype != torch.bool:
        raise InputError(
            f"A mask tensor is boolean or additive (floats), got {source.dtype}; pass mask.bool() if 1 means allowed."
        )
    dense = source if source.dim() == 4 else source[:, None] if source.dim() == 3 else source[None, None]
    n_batch, n_heads, n_query, n_key = dense.shape
    start = 0 if first_query is None and n_query == n_key else first_query
    return DenseMask(n_query, n_key, n_batch, n_heads, start, dense=dense)


def _kernel(source: BlockMask, first_query: int | None) -> KernelMask:
    n_batch, n_heads, n_query, n_key = source.shape
    listed = torch.zeros(
        n_batch, n_heads, *source.kv_indices.shape[2:3], -(-n_key // source.BLOCK_SIZE[1]), dtype=torch.int8
    )
    for numbers, indices, state in (
        (source.kv_num_blocks, source.kv_indices, UNKNOWN),
        (source.full_kv_num_blocks, source.full_kv_indices, 1),
    ):
        if numbers is None or indices is None:
            continue
        is_listed = torch.arange(indices.shape[-1]) < numbers.cpu()[..., None]  # [batch, head, query_block, slot]
        at = torch.where(is_listed, indices.cpu().long(), listed.shape[-1])
        marks = torch.zeros(*listed.shape[:-1], listed.shape[-1] + 1, dtype=torch.bool)
        marks.scatter_(-1, at, True)
        listed[marks[..., :-1]] = state
    sizes = (n_query, n_key, n_batch, n_heads)
    start = 0 if first_query is None and n_query == n_key else first_query
    mod = FunctionMask(*sizes, start, function=source.mask_mod)
    return KernelMask(*sizes, start, mod=mod, listed=listed, size=source.BLOCK_SIZE)
