"""Find the rule that a mask follows.

Each part of a rule (a window, documents, a prefix, …) has at most a few possible values, which can be read off the cells. Rules
made of these parts are compared with the mask in every cell, the simplest first. A rule is only returned if no cell differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.errors import InputError
from xformer.masks.checking import MaskCheck, check, empty_rows_text
from xformer.masks.mask import DenseMask, as_mask
from xformer.masks.rules import (
    Rule,
    bidirectional,
    causal,
    chunked,
    dilated,
    documents,
    everywhere,
    neighbourhood,
    padding,
    prefix,
    queries,
    sinks,
    window,
)

MAX_POSITIONS = 4096
"""The most queries or keys of a mask that is described."""
MAX_MASKS = 64
"""The most different masks, of inputs and heads, that are described."""


@dataclass(frozen=True, eq=False)
class Description:
    """The rule of a mask, or the nearest one.

    Attributes:
        rule: The rule that has exactly the cells of the mask; None if none was found.
        nearest: The comparison of the mask with the rule, or with the nearest one.
        sentence: The description; positions count from 0.
        inputs: The inputs and heads with this mask, (batch, head).

    Example:
        >>> from xformer import masks
        >>> masks.describe(masks.causal(), n_query=8).groups[0].nearest.holds
        True
    """

    rule: Rule | None
    nearest: MaskCheck
    sentence: str
    inputs: tuple[tuple[int, int], ...] = ((0, 0),)

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class Descriptions:
    """The descriptions of a mask: one for each group of inputs and heads with the same cells.

    Example:
        >>> from xformer import masks
        >>> found = masks.describe(masks.causal() & masks.window(4), n_query=16)
        >>> found.rule.code
        'causal() & window(4)'
    """

    groups: tuple[Description, ...]
    n_batch: int
    n_heads: int

    @property
    def rule(self) -> Rule | None:
        """The rule of all inputs and heads; None if there is none, or if they differ."""
        return self.groups[0].rule if len(self.groups) == 1 else None

    @property
    def sentence(self) -> str:
        """The description in words."""
        if len(self.groups) == 1:
            return self.groups[0].sentence
        return " ".join(f"{self._where(group)}: {group.sentence}." for group in self.groups)

    def _where(self, group: Description) -> str:
        batches, heads = (sorted({one[axis] for one in group.inputs}) for axis in (0, 1))
        parts = []
        if self.n_batch > 1:
            parts.append(f"input{'s' if len(batches) > 1 else ''} {', '.join(map(str, batches))}")
        if self.n_heads > 1:
            parts.append(f"head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}")
        text = ", ".join(parts)
        return text[:1].upper() + text[1:]

    def __str__(self) -> str:
        return self.sentence


def describe(mask: Any, **sizes: Any) -> Descriptions:
    """Say which rule a mask follows: "causal, window 4, 3 documents at 0, 5, 9; row 7 is empty".

    Args:
        mask: A mask, or what `as_mask` takes, with up to `MAX_POSITIONS` queries and keys.
        sizes: The other arguments of `as_mask`.

    Returns:
        The description. Where no rule of this library makes the mask, it says so, and gives the nearest one.

    Raises:
        InputError: If the mask is too large, or it is not known at which key its first query is.

    Example:
        >>> import torch
        >>> from xformer import masks
        >>> cells = torch.ones(6, 6).tril().bool()
        >>> print(masks.describe(cells))
        causal
        >>> cells[3, 5] = True
        >>> print(masks.describe(cells & ~torch.eye(6).bool()))
        no rule of ours makes this mask; nearest: causal, 7 cells differ, first (0, 0)
    """
    found = as_mask(mask, **sizes)
    if max(found.n_query, found.n_key) > MAX_POSITIONS:
        raise InputError(
            f"describe reads masks of up to {MAX_POSITIONS:,} positions, got {found.n_query:,} × {found.n_key:,}; use check "
            "with a rule instead, or describe a part: mask.cells(queries=, keys=)."
        )
    if found.first_query is None:
        raise InputError(
            f"The mask has {found.n_query} queries and {found.n_key} keys; first_query= must say which key is at the first "
            f"query, such as {found.n_key - found.n_query} if the queries are the last positions."
        )
    groups: list[tuple[Tensor, list[tuple[int, int]]]] = []
    for batch in range(found.n_batch):
        for head in range(found.n_heads):
            cells = found.cells(batch, head)
            same = next((places for other, places in groups if torch.equal(other, cells)), None)
            if same is None:
                groups.append((cells, same := []))
            same.append((batch, head))
            if len(groups) > MAX_MASKS:
                raise InputError(f"describe reads up to {MAX_MASKS} different masks; select inputs or heads.")
    described = [_describe(cells, found.first_query, tuple(places)) for cells, places in groups]
    return Descriptions(tuple(described), found.n_batch, found.n_heads)


def _describe(cells: Bool[Tensor, "query key"], first: int, places: tuple[tuple[int, int], ...]) -> Description:
    seen = _Seen.of(cells, first)
    mask = DenseMask(*cells.shape, first_query=first, dense=cells[None, None])
    best: tuple[int, int, Sequence[Rule], Rule] | None = None
    for parts in _candidates(seen) if bool(cells.any()) else [[~bidirectional()]]:
        rule = _all(parts)
        made = as_mask(rule, n_query=mask.n_query, n_key=mask.n_key, first_query=first).cells()
        missing = made & seen.empty_rows[:, None]
        n = int((made != cells).sum())
        if n and n == int(missing.sum()):  # only rows that are empty for no reason of the rule
            lost = (missing.any(dim=1).nonzero()[:, 0] + first).tolist()
            if min(lost) >= 0 and (len(lost) <= max(8, mask.n_query // 8) or _is_side(lost, first, mask.n_query)):
                rule, n = rule & ~queries(lost), 0
        if best is None or n < best[0]:
            best = (n, len(parts), parts, rule)
        if not n:
            break
    assert best is not None
    n, _, parts, rule = best
    found = check(mask, rule)
    text = ", ".join(f"({one.text})" if " or " in one.text and len(parts) > 1 else one.text for one in parts)
    if not bool(cells.any()):
        text = "every cell is forbidden"
    elif n == 0 and bool(seen.empty_rows.any()):
        text = f"{text}; {empty_rows_text(seen.empty_rows.nonzero()[:, 0].tolist())}"
    if not found.holds:
        query, key = (found.first or (0, 0, 0, 0))[2:]
        cells_text = "1 cell differs" if found.n_differing == 1 else f"{found.n_differing:,} cells differ"
        text = f"no rule of ours makes this mask; nearest: {text}, {cells_text}, first ({query}, {key})"
    return Description(rule if found.holds else None, found, text, places)


def _is_side(rows: list[int], first: int, n: int) -> bool:
    """Whether rows are consecutive, at the start or the end: padding."""
    return rows[-1] - rows[0] + 1 == len(rows) and (rows[0] == first or rows[-1] == first + n - 1)


def _all(parts: Sequence[Rule]) -> Rule:
    rule = parts[0]
    for one in parts[1:]:
        rule = rule & one
    return rule


@dataclass(frozen=True, eq=False)
class _Seen:
    """A mask without the keys that no query sees, and without empty rows."""

    n_key: int
    hidden: Bool[Tensor, " key"]
    empty_rows: Bool[Tensor, " query"]
    cells: Bool[Tensor, "query key"]
    q: Int[Tensor, " query"]
    k: Int[Tensor, " key"]

    @classmethod
    def of(cls, cells: Bool[Tensor, "query key"], first: int) -> _Seen:
        empty, hidden = ~cells.any(dim=1), ~cells.any(dim=0)
        rows, columns = (~empty).nonzero()[:, 0], (~hidden).nonzero()[:, 0]
        return cls(cells.shape[1], hidden, empty, cells[rows][:, columns], rows + first, columns)

    @property
    def distance(self) -> Int[Tensor, "query key"]:
        """How far each key is before the query."""
        return self.q[:, None] - self.k


def _candidates(seen: _Seen) -> Iterator[list[Rule]]:
    """Yield rules as lists of parts that must all hold, the ones with the fewest parts first."""
    found: list[tuple[int, list[Rule]]] = []
    hidden = [[]] if not bool(seen.hidden.any()) else [[padding(~seen.hidden)]]
    if hidden[0] and len(seen.q) < seen.n_key:
        hidden.append([])  # keys may be hidden by the rule itself
    for more in hidden:
        found += [(cost + len(more), [*parts, *more]) for cost, parts in _cores(seen)]
        past = seen.cells & (seen.distance >= 0)
        if bool(past.any(dim=1).all()) and not torch.equal(
            past, seen.cells
        ):  # a few later keys may be faults in a causal mask
            found += [(cost + 100, [*parts, *more]) for cost, parts in _cores(replace(seen, cells=past))]
    for _, parts in sorted(found, key=lambda one: one[0]):
        yield parts


def _cores(seen: _Seen) -> Iterator[tuple[int, list[Rule]]]:
    """Yield the number of values in a rule, and its parts."""
    later = seen.cells & (seen.distance < 0)
    same = [[], *([one] for one in _documents(seen))]
    steps = [[], *([one] for one in _dilations(seen))]
    for kept in same:
        for step in steps:
            rest = [*kept, *step]
            if not bool(later.any()):
                for left in _lefts(seen):
                    yield 1 + len(rest) + len(left), [causal(), *left, *rest]
                continue
            yield 1 + len(rest), rest or [bidirectional()]
            for left in _two_sided(seen):
                yield 1 + len(rest) + len(left), [*left, *rest]
            for extra in _extras(seen, later):
                for left in _lefts(seen):
                    first = _all([causal(), *left])
                    n = 2 + len(rest) + len(left)
                    yield n, [first | extra, *rest]
                    if rest:
                        yield n, [_all([first, *rest]) | extra]
                    if left:
                        yield n, [causal() | extra, *left, *rest]
    for one in _images(seen):
        yield 2, [one]


def _documents(seen: _Seen) -> list[Rule]:
    """Return rules of documents between whose starts no cell is allowed."""
    n = max(int(seen.k.max()), int(seen.q.max())) + 1
    ends = torch.zeros(n + 1, dtype=torch.int64)  # how many rows reach across each boundary
    index = torch.arange(len(seen.k))
    first = seen.k[torch.where(seen.cells, index, len(index)).amin(dim=1)]
    last = seen.k[torch.where(seen.cells, index, -1).amax(dim=1)]
    low, high = torch.minimum(first, seen.q), torch.maximum(last, seen.q)
    ends.index_add_(0, low.clamp(min=0) + 1, torch.ones_like(low))
    ends.index_add_(0, high + 1, -torch.ones_like(high))
    free = ends.cumsum(0)[:n] == 0
    visible = torch.zeros(n, dtype=torch.bool)
    visible[seen.k] = True
    starts = [at for at in free.nonzero()[:, 0].tolist() if bool(visible[at]) and bool(visible[:at].any())]
    found = []
    if starts:
        found.append(documents([0, *starts]))
        gap = starts[1] - starts[0] if len(starts) > 1 else starts[0]
        if all(b - a == gap for a, b in pairwise(starts)) and len(starts) > 1:
            found.insert(0, chunked(gap, left_padding=starts[0] % gap))
    if len(seen.q) == len(seen.k) and torch.equal(seen.q, seen.k):  # documents that are not in one piece
        ids = torch.full((seen.n_key,), seen.n_key)
        ids[seen.k] = first
        if len(first.unique()) > 1 and not starts:
            found.append(documents(ids=ids))
    return found


def _dilations(seen: _Seen) -> list[Rule]:
    distances = seen.distance[seen.cells].unique().tolist()
    step = math.gcd(*distances) if distances else 0
    return [dilated(step)] if step > 1 else []


def _lefts(seen: _Seen) -> list[list[Rule]]:
    """Return limits on how far back queries see: none, a window, and a window with keys that are always visible."""
    past = seen.distance >= 0
    found: list[list[Rule]] = [[]]
    reach = seen.distance[seen.cells & past]
    if not reach.numel():
        return found
    farthest = torch.where(seen.cells & past, seen.distance, -1).amax(dim=1)  # [query]
    usual = int(farthest.mode().values)  # differs from the largest if a few cells are faults
    for far in dict.fromkeys((int(reach.max()), max(0, usual))):
        if bool((past & (seen.distance > far)).any()):
            found.append([window(far + 1)])
    always = (seen.cells | ~past).all(dim=0)  # [key]
    n = int(always.long().cumprod(0).sum())
    for count in dict.fromkeys((n, *range(1, min(n, 9)))):
        if 0 < count < len(seen.k):
            limit = int(seen.k[count])
            others = seen.cells & past & (seen.k >= limit)
            if not bool(others.any()):
                continue
            far = int(seen.distance[others].max())
            if bool((past & (seen.k >= limit) & (seen.distance > far)).any()):
                found.append([window(far + 1) | sinks(limit)])
    return found


def _two_sided(seen: _Seen) -> list[list[Rule]]:
    """Return windows on both sides, also with positions that see and are seen everywhere."""
    found = []
    rows, columns = seen.cells.all(dim=1), seen.cells.all(dim=0)
    shared = sorted(set(seen.q[rows].tolist()) & set(seen.k[columns].tolist()))
    for at in ([], shared) if shared else ([],):
        is_rest = ~torch.isin(seen.q, torch.tensor(at))[:, None] & ~torch.isin(seen.k, torch.tensor(at))
        distances = seen.distance[seen.cells & is_rest]
        if not distances.numel():
            continue
        back, ahead = int(distances.max()) + 1, int(-distances.min()) + 1
        if min(back, ahead) < 1 or (back >= seen.n_key and ahead >= seen.n_key):
            continue
        rule = window(back, ahead=ahead)
        found.append([rule | everywhere(at)] if at else [rule])
    return found


def _extras(seen: _Seen, later: Bool[Tensor, "query key"]) -> list[Rule]:
    """Return what may be visible besides earlier keys: a prefix, or blocks whose tokens see each other."""
    index = torch.arange(len(seen.k))
    last = torch.where(later, index, -1).amax(dim=1)
    found = [prefix(int(seen.k[last.max()]) + 1)]
    ranges: list[list[int]] = []
    for row in (last >= 0).nonzero()[:, 0].tolist():
        start, stop = int(seen.q[row]), int(seen.k[last[row]]) + 1
        if ranges and start < ranges[-1][1]:
            ranges[-1][1] = max(stop, ranges[-1][1])
        else:
            ranges.append([start, stop])
    if ranges[0][0] >= 0:
        found.append(bidirectional(within=ranges))
    return found


def _images(seen: _Seen) -> list[Rule]:
    """Return neighbourhoods in an image whose kernel and width are those of a query in the middle."""
    n = seen.n_key
    if len(seen.q) != n or len(seen.k) != n:
        return []
    counts = seen.cells.sum(dim=1)
    kernel = math.isqrt(int(counts.max()))
    if kernel**2 != int(counts.max()) or kernel % 2 == 0 or kernel < 3:
        return []
    row = seen.cells[int((counts == counts.max()).nonzero()[:, 0].median())].nonzero()[:, 0]
    starts = row[torch.cat([torch.tensor([True]), row.diff() > 1])]
    if len(starts) < 2:
        return []
    width = int(starts[1] - starts[0])
    if n % width or kernel > min(width, n // width):
        return []
    return [neighbourhood(n // width, width, kernel, clamped=clamped) for clamped in (True, False)]
