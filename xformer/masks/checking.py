"""Check a mask against the rule that it is meant to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from xformer.errors import InputError
from xformer.masks.mask import BLOCK, Mask, as_mask, tally
from xformer.masks.rules import Rule, positions_text

MAX_CELLS = 1000
"""The most cells that a result lists for each input, head and direction."""
MAX_PAIRS = 4096
"""The most pairs of input and head that are checked."""
DIRECTIONS = ("allowed_but_forbidden", "forbidden_but_allowed")


@dataclass(frozen=True, eq=False)
class MaskCheck:
    """The comparison of a mask with a rule.

    Attributes:
        mask: The mask.
        rule: The rule, as a mask of the same sizes.
        rule_text: The rule in words.
        n_leaks: The number of cells that the mask allows and the rule forbids.
        n_losses: The number of cells that the mask forbids and the rule allows.
        n_cells: The number of compared cells.
        first: The first cell that differs: batch, head, query and key; None if there is none.
        empty_rows: Rows without an allowed key, (batch, head, query), if the rule requires that there are none.
        n_empty_rows: The number of all such rows.
        table: Up to `MAX_CELLS` cells of each input, head and direction, a row each: batch, head, query, key and direction,
            "allowed_but_forbidden" or "forbidden_but_allowed".

    Example:
        >>> from xformer import masks
        >>> found = masks.check(masks.window(3), masks.window(4), n_query=6)
        >>> found.n_losses, found.first
        (3, (0, 0, 3, 0))
    """

    mask: Mask
    rule: Mask
    rule_text: str
    n_leaks: int
    n_losses: int
    n_cells: int
    first: tuple[int, int, int, int] | None
    first_leak: tuple[int, int, int, int] | None = None
    first_loss: tuple[int, int, int, int] | None = None
    empty_rows: tuple[tuple[int, int, int], ...] = ()
    n_empty_rows: int = 0
    table: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @property
    def holds(self) -> bool:
        """Whether the mask is exactly what the rule says."""
        return not (self.n_leaks or self.n_losses or self.n_empty_rows)

    @property
    def n_differing(self) -> int:
        """The number of cells in which the mask and the rule differ."""
        return self.n_leaks + self.n_losses

    @property
    def sentence(self) -> str:
        """The result in words; positions, inputs and heads count from 0."""
        if self.holds:
            return f"The mask is {self.rule_text}: all {self.n_cells:,} cells agree."
        parts = []
        for n, first, says in (
            (self.n_leaks, self.first_leak, "allowed, but the rule forbids"),
            (self.n_losses, self.first_loss, "forbidden, but the rule allows"),
        ):
            if n and first is not None:
                them = "it" if n == 1 else "them"
                where = f"query {first[2]}, key {first[3]}{self._place(*first[:2])}"
                parts.append(f"{n:,} cell{'s are' if n > 1 else ' is'} {says} {them}, first {where}.")
        if self.n_empty_rows:
            batch, head, query = self.empty_rows[0]
            rows = f"{self.n_empty_rows:,} queries have" if self.n_empty_rows > 1 else "1 query has"
            parts.append(f"{rows} no allowed key, first query {query}{self._place(batch, head)}.")
        return f"The mask is not {self.rule_text}: {' '.join(parts)}"

    def _place(self, batch: int, head: int) -> str:
        n_batch, n_heads = max(self.mask.n_batch, self.rule.n_batch), max(self.mask.n_heads, self.rule.n_heads)
        return (f" of input {batch}" if n_batch > 1 else "") + (f" in head {head}" if n_heads > 1 else "")

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.sentence)}</p>"


def check(mask: Any, rule: Any, *, queries: Any = None, **sizes: Any) -> MaskCheck:
    """Compare a mask with the rule that it is meant to follow, in every cell.

    Args:
        mask: A mask, or what `as_mask` takes.
        rule: A rule, such as `causal() & window(512)`; or another mask that should be the same.
        queries: The queries that matter, true at their positions, [query] or [batch, query]; None: all. Rows of padding, for
            example, do not matter: pass `attention_mask`.
        sizes: The other arguments of `as_mask`: n_query, n_key, n_batch, n_heads, first_query.

    Returns:
        The result, with a sentence and a table; `viz.mask(result)` draws it.

    Raises:
        InputError: If the mask and the rule have different sizes.

    Example:
        >>> import torch
        >>> from xformer import masks
        >>> cells = torch.ones(6, 6).tril().bool()
        >>> cells[2, 4] = True
        >>> print(masks.check(cells, masks.causal()))
        The mask is not causal: 1 cell is allowed, but the rule forbids it, first query 2, key 4.
    """
    checked = as_mask(mask, **sizes)
    expected, text, needs_rows = _expected(rule, checked)
    n_batch, n_heads = (
        _common(what, getattr(checked, name), getattr(expected, name))
        for what, name in (("inputs", "n_batch"), ("heads", "n_heads"))
    )
    rows = _rows(queries, checked.n_query)
    n_batch = _common("inputs", n_batch, 1 if rows is None else len(rows))
    if n_batch * n_heads > MAX_PAIRS:
        raise InputError(f"check compares at most {MAX_PAIRS:,} pairs of input and head, got {n_batch * n_heads:,}.")
    found = [0, 0]
    firsts: list[tuple[int, int, int, int] | None] = [None, None]
    table, empty, n_empty = [], [], 0
    for batch in range(n_batch):
        chosen = None if rows is None else rows[min(batch, len(rows) - 1)]
        for head in range(n_heads):
            n, cells = _compare(checked, expected, batch, head, chosen)
            for side, direction in enumerate(DIRECTIONS):
                found[side] += n[side]
                if cells[side] and firsts[side] is None:
                    firsts[side] = (batch, head, *cells[side][0])
                table += [(batch, head, *cell, direction) for cell in cells[side]]
            if needs_rows:
                lost = _empty_rows(checked, batch, head, chosen)
                n_empty += len(lost)
                empty += [(batch, head, query) for query in lost[:MAX_CELLS]]
    n_rows = checked.n_query * n_batch if rows is None else int(rows.sum()) * (n_batch // len(rows))
    known = [one for one in firsts if one is not None]
    return MaskCheck(
        mask=checked,
        rule=expected,
        rule_text=text,
        n_leaks=found[0],
        n_losses=found[1],
        n_cells=n_rows * checked.n_key * n_heads,
        first=min(known) if known else None,
        first_leak=firsts[0],
        first_loss=firsts[1],
        empty_rows=tuple(empty),
        n_empty_rows=n_empty,
        table=pd.DataFrame(table, columns=["batch", "head", "query", "key", "direction"]),
    )


def _expected(rule: Any, mask: Mask) -> tuple[Mask, str, bool]:
    """Return the rule as a mask of the sizes of another one, in words, and whether rows must not be empty."""
    if isinstance(rule, Rule):
        expected = as_mask(rule, n_query=mask.n_query, n_key=mask.n_key, first_query=mask.first_query)
        return expected, rule.text, rule.rows_not_empty
    sizes = (
        {} if isinstance(rule, Mask | Tensor) or not callable(rule) else {"n_query": mask.n_query, "n_key": mask.n_key}
    )
    if sizes:
        sizes |= {"n_batch": mask.n_batch, "n_heads": mask.n_heads}
    expected = as_mask(rule, **sizes)
    shapes = [(one.n_query, one.n_key) for one in (mask, expected)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"The mask has {shapes[0][0]} × {shapes[0][1]} cells, and the rule {shapes[1][0]} × {shapes[1][1]}."
        )
    return expected, "the expected mask", False


def _common(what: str, one: int, other: int) -> int:
    if 1 not in (one, other) and one != other:
        raise InputError(f"The mask is for {one} {what}, and the rule for {other}.")
    return max(one, other)


def _rows(queries: Any, n_query: int) -> Bool[Tensor, "batch query"] | None:
    if queries is None:
        return None
    rows = torch.as_tensor(queries).to("cpu")
    rows = rows[None] if rows.dim() == 1 else rows
    if rows.dim() != 2 or rows.shape[1] != n_query or rows.is_floating_point():
        raise InputError(
            f"queries must be true at the queries that matter, [{n_query}] or [batch, {n_query}], got {tuple(rows.shape)}."
        )
    return rows.bool()


def _compare(
    mask: Mask, rule: Mask, batch: int, head: int, rows: Bool[Tensor, " query"] | None
) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Return for each of `DIRECTIONS` the number of cells that differ, and the first of them in the order of rows."""
    places = [(one, min(batch, one.n_batch - 1), min(head, one.n_heads - 1)) for one in (mask, rule)]
    counts = tally(places, _differences, rows=rows)
    return [int(one.sum()) for one in counts], [_first(places, side, counts[side], rows) for side in (0, 1)]


def _differences(cells: list[Tensor]) -> list[Tensor]:
    return [cells[0] & ~cells[1], cells[1] & ~cells[0]]


def _first(
    places: Sequence[tuple[Mask, int, int]], side: int, counts: Tensor, rows: Bool[Tensor, " query"] | None
) -> list[tuple[int, int]]:
    """Return the first cells that differ in one direction, from the blocks that have some."""
    found: list[tuple[int, int]] = []
    for row in counts.sum(dim=1).nonzero()[:, 0].tolist():
        here: list[tuple[int, int]] = []
        for column in counts[row].nonzero()[:, 0].tolist():
            q, k = (
                torch.arange(at * BLOCK, min((at + 1) * BLOCK, n))
                for at, n in ((row, places[0][0].n_query), (column, places[0][0].n_key))
            )
            wrong = _differences([mask.at(batch, head, q[:, None], k[None]) for mask, batch, head in places])[side]
            if rows is not None:
                wrong = wrong & rows[q][:, None]
            at = wrong.nonzero()[:MAX_CELLS]
            here += list(zip(q[at[:, 0]].tolist(), k[at[:, 1]].tolist(), strict=True))
        found += sorted(here)
        if len(found) >= MAX_CELLS:
            break
    return found[:MAX_CELLS]


def _empty_rows(mask: Mask, batch: int, head: int, rows: Bool[Tensor, " query"] | None) -> Sequence[int]:
    """Return the queries without an allowed key."""
    place = (mask, min(batch, mask.n_batch - 1), min(head, mask.n_heads - 1))
    counts = tally([place], lambda cells: [cells[0]])[0]  # [query block, key block]
    starts = [torch.arange(0, n, BLOCK) for n in (mask.n_query, mask.n_key)]
    areas = [(one + BLOCK).clamp(max=n) - one for one, n in zip(starts, (mask.n_query, mask.n_key), strict=True)]
    is_full = counts == areas[0][:, None] * areas[1]
    empty: list[int] = []
    for row in (~is_full.any(dim=1)).nonzero()[:, 0].tolist():
        q = torch.arange(row * BLOCK, min((row + 1) * BLOCK, mask.n_query))
        seen = torch.zeros(len(q), dtype=torch.bool) if rows is None else ~rows[q]
        for column in counts[row].nonzero()[:, 0].tolist():
            k = torch.arange(column * BLOCK, min((column + 1) * BLOCK, mask.n_key))
            seen |= place[0].at(*place[1:], q[:, None], k[None]).any(dim=1)
            if bool(seen.all()):
                break
        empty += q[~seen].tolist()
    return empty


def empty_rows_text(rows: Sequence[int]) -> str:
    """Return "row 7 is empty" or "rows 0–2 are empty"."""
    return f"{positions_text('row', rows)} empty"
