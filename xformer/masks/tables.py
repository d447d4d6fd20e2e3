"""The cells, runs or blocks of a mask as tables, for pictures and for reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int8
from torch import Tensor

from xformer.errors import InputError
from xformer.masks.checking import DIRECTIONS, MaskCheck
from xformer.masks.mask import Mask, Span, as_mask, checked_span, tally
from xformer.masks.rules import Rule

STATES = ("forbidden", "allowed", *DIRECTIONS)
"""The states of a cell; the last two only in a check."""
BLOCK_STATES = ("empty", "partial", "full")
MAX_CELLS = 4096**2
"""The most cells of a table of runs."""


def cell_states(
    mask: Any, *, batch: int = 0, head: int = 0, queries: Span | None = None, keys: Span | None = None, **sizes: Any
) -> Int8[Tensor, "query key"]:
    """Return the state of each cell, as an index into `STATES`.

    Args:
        mask: The result of `check`, a mask, or what `as_mask` takes.
        batch: The input, from 0.
        head: The head, from 0.
        queries: The first query, and the one after the last; None: all.
        keys: The first key, and the one after the last; None: all.
        sizes: The other arguments of `as_mask`.

    Returns:
        The states; the last two occur only for a check.

    Example:
        >>> from xformer import masks
        >>> from xformer.masks.tables import cell_states
        >>> cell_states(masks.check(~masks.causal(), masks.causal(), n_query=2))
        tensor([[3, 2],
                [3, 3]], dtype=torch.int8)
    """
    if not isinstance(mask, MaskCheck):
        return as_mask(mask, **sizes).cells(batch, head, queries, keys).to(torch.int8)
    cells, rule = (one.cells(*_place(one, batch, head), queries, keys) for one in (mask.mask, mask.rule))
    states = (cells & rule).to(torch.int8)
    states[cells & ~rule] = 2
    states[rule & ~cells] = 3
    return states


def _place(mask: Mask, batch: int, head: int) -> tuple[int, int]:
    """Return the input and head of a mask that may be the same for all."""
    return (0 if mask.n_batch == 1 else batch), (0 if mask.n_heads == 1 else head)


def sizes_of(mask: Any, **sizes: Any) -> tuple[MaskCheck | Mask, int, int]:
    """Return the result of a check or a mask, with its numbers of queries and keys."""
    found = mask if isinstance(mask, MaskCheck) else as_mask(mask, **sizes)
    shape = found.mask if isinstance(found, MaskCheck) else found
    return found, shape.n_query, shape.n_key


def cell_table(
    mask: Any,
    *,
    rule: Rule | None = None,
    batch: int = 0,
    head: int = 0,
    queries: Span | None = None,
    keys: Span | None = None,
    **sizes: Any,
) -> pd.DataFrame:
    """Return the cells of a mask, a row each.

    Args:
        mask: The result of `check`, a mask, or what `as_mask` takes.
        rule: A rule whose parts explain the cells; None: the mask itself if it is a rule.
        batch: The input, from 0.
        head: The head, from 0.
        queries: The first query, and the one after the last; None: all.
        keys: The first key, and the one after the last; None: all.
        sizes: The other arguments of `as_mask`.

    Returns:
        The columns query, key, state (one of `STATES`) and reason: which parts of the rule hold, or "".

    Example:
        >>> from xformer import masks
        >>> table = masks.cell_table(masks.causal() & masks.window(2), n_query=3)
        >>> table.iloc[-3][["state", "reason"]].tolist()  # query 2, key 0
        ['forbidden', 'causal: yes · window 2: no']
    """
    rule = mask if rule is None and isinstance(mask, Rule) else rule
    found, n_query, n_key = sizes_of(mask, **sizes)
    rows, columns = checked_span("queries", queries, n_query), checked_span("keys", keys, n_key)
    states = cell_states(found, batch=batch, head=head, queries=rows, keys=columns)
    q, k = (one.flatten().numpy() for one in torch.meshgrid(torch.arange(*rows), torch.arange(*columns), indexing="ij"))
    return pd.DataFrame(
        {
            "query": q,
            "key": k,
            "state": np.array(STATES)[states.flatten().numpy()],
            "reason": _reasons(rule, found, batch, rows, columns),
        }
    )


def _reasons(rule: Rule | None, mask: MaskCheck | Mask, batch: int, rows: Span, columns: Span) -> list[str] | str:
    if rule is None:
        return ""
    shape = mask.mask if isinstance(mask, MaskCheck) else mask
    leaves = list(dict.fromkeys(rule.leaves))
    parts = []
    for leaf in leaves:
        made = as_mask(leaf, n_query=shape.n_query, n_key=shape.n_key, first_query=shape.first_query)
        cells = made.cells(_place(made, batch, 0)[0], 0, rows, columns).flatten().numpy()
        parts.append(np.where(cells, f"{leaf.text}: yes", f"{leaf.text}: no"))
    return [" · ".join(texts) for texts in zip(*parts, strict=True)]


def run_table(
    mask: Any, *, batch: int = 0, head: int = 0, queries: Span | None = None, keys: Span | None = None, **sizes: Any
) -> pd.DataFrame:
    """Return the cells that are not forbidden as rectangles of equal cells: exact, with few rows for masks with structure.

    Args:
        mask: The result of `check`, a mask, or what `as_mask` takes.
        batch: The input, from 0.
        head: The head, from 0.
        queries: The first query, and the one after the last; None: all.
        keys: The first key, and the one after the last; None: all.
        sizes: The other arguments of `as_mask`.

    Returns:
        The columns query, query_stop, key, key_stop (after the last) and state.

    Raises:
        InputError: If there are more than `MAX_CELLS` cells.

    Example:
        >>> from xformer import masks
        >>> len(masks.run_table(masks.documents([0, 500, 800]), n_query=1000))
        3
    """
    found, n_query, n_key = sizes_of(mask, **sizes)
    rows, columns = checked_span("queries", queries, n_query), checked_span("keys", keys, n_key)
    if (rows[1] - rows[0]) * (columns[1] - columns[0]) > MAX_CELLS:
        raise InputError(f"run_table reads at most {MAX_CELLS:,} cells; select some with queries= and keys=.")
    states = cell_states(found, batch=batch, head=head, queries=rows, keys=columns).numpy()
    table: list[tuple[int, int, int, int, str]] = []
    changed = np.ones(len(states) + 1, dtype=bool)
    changed[1:-1] = (states[1:] != states[:-1]).any(axis=1)
    edges = np.flatnonzero(changed)
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        line = states[first]
        cuts = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
        table += [
            (rows[0] + first, rows[0] + stop, columns[0] + a, columns[0] + b, STATES[line[a]])
            for a, b in pairwise(cuts)
            if line[a]
        ]
    return pd.DataFrame(table, columns=["query", "query_stop", "key", "key_stop", "state"])


def block_table(mask: Any, *, batch: int = 0, head: int = 0, block: int = 128, **sizes: Any) -> pd.DataFrame:
    """Return the blocks of a mask of any size, a row each; counts are exact.

    Args:
        mask: The result of `check`, a mask, or what `as_mask` takes.
        batch: The input, from 0.
        head: The head, from 0.
        block: The positions of a block on each axis.
        sizes: The other arguments of `as_mask`.

    Returns:
        The columns query, query_stop, key, key_stop (after the last), state ("empty", "partial" or "full"), allowed (the number
        of allowed cells) and cells; for a check also allowed_but_forbidden and forbidden_but_allowed.

    Example:
        >>> from xformer import masks
        >>> masks.block_table(masks.causal(), n_query=32768, block=16384)["state"].tolist()
        ['partial', 'empty', 'full', 'partial']
    """
    found, n_query, n_key = sizes_of(mask, **sizes)
    masks: Sequence[Mask] = (found.mask, found.rule) if isinstance(found, MaskCheck) else (found,)
    places = [(one, *_place(one, batch, head)) for one in masks]

    def combine(cells: list[Tensor]) -> list[Tensor]:
        return cells if len(cells) == 1 else [cells[0], cells[0] & ~cells[1], cells[1] & ~cells[0]]

    counts = [one.flatten().numpy() for one in tally(places, combine, block=block)]
    firsts = [np.arange(0, n, block) for n in (n_query, n_key)]
    query, key = (one.ravel() for one in np.meshgrid(*firsts, indexing="ij"))
    query_stop, key_stop = np.minimum(query + block, n_query), np.minimum(key + block, n_key)
    cells = (query_stop - query) * (key_stop - key)
    state = np.where(counts[0] == 0, "empty", np.where(counts[0] == cells, "full", "partial"))
    table = pd.DataFrame(
        {"query": query, "query_stop": query_stop, "key": key, "key_stop": key_stop, "state": state}
    ).assign(allowed=counts[0], cells=cells)
    return table.assign(**dict(zip(DIRECTIONS, counts[1:], strict=False)))
