"""The weights of one attention head as a table: which query looks how much at which key, and what the mask forbids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from xformer.errors import EditError
from xformer.memory import check_analysis
from xformer.reading import Reading
from xformer.site import Site

MOST_WRITTEN_OUT = 512**2
"""Cells of a table that has each name as text; a larger one has categories, which take a tenth."""
REACH = 24
"""So many queries and keys before a cell, and after it, are the cells around it."""


def attention(reading: Reading, *, layer: int, head: int, around: tuple[int, int] | None = None) -> pd.DataFrame:
    """One row a cell: query, key (position, from 0, and token), whether the mask allows it, and its weight (none where not).

    `layer` counts the attention layers in their order, `head` the heads of a layer, both from 0; of a long input `around` keeps
    the cells around one, (query, key), up to `REACH` on each side. Of a trace without its masks every cell counts as allowed.
    Raises `EditError` where there is no such layer, head or cell, and `InputError` where a table of all cells is too large.
    """
    site = reading.attention_site(layer)
    pattern = reading[f"{site.path}.pattern"][0]  # [head, query, key]
    if not 0 <= head < len(pattern):
        raise EditError(f"{site.path} has heads 0 to {len(pattern) - 1}, got {head}.")
    allowed = np.ones(pattern.shape[1:], dtype=bool)
    if f"{site.path}.mask" in reading:
        mask = reading[f"{site.path}.mask"][0].expand(pattern.shape)
        allowed = mask[head].numpy(force=True)  # [query, key]
    weights = pattern[head].float().numpy(force=True)  # [query, key]
    queries, keys = (
        [f"{position} {name}" for position, name in enumerate(names)]
        for names in token_names(reading, site, weights.shape)
    )
    if around is None:
        check_analysis("attention", "ask for cells with around=", n=max(weights.shape))
        return pattern_cells(weights, allowed, queries, keys)
    if not all(0 <= at < n for at, n in zip(around, weights.shape, strict=True)):
        n_query, n_key = weights.shape
        raise EditError(f"around is a cell of {n_query} queries and {n_key} keys, counted from 0, got {around}.")
    rows, cols = (slice(max(0, at - REACH), at + REACH + 1) for at in around)
    return pattern_cells(weights[rows, cols], allowed[rows, cols], queries[rows], keys[cols])


def token_names(reading: Reading, site: Site, shape: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stands at the queries and at the keys of a layer whose patterns end in the axes `shape`, [query, key].

    Where a broken model swaps or cuts these axes, the names of the stream that has so many, or else numbers.
    """
    streams = [reading.tokens_of(stack) for stack in (site.query_stack, site.key_stack)]
    named = []
    for usual, other, n in zip(streams, reversed(streams), shape[-2:], strict=True):
        named.append(next((names for names in (usual, other) if len(names) == n), tuple(map(str, range(n)))))
    return named[0], named[1]


def pattern_cells(
    pattern: Float[np.ndarray, "query key"],
    allowed: Bool[np.ndarray, "query key"],
    queries: Sequence[str],
    keys: Sequence[str],
) -> pd.DataFrame:
    """The table of `attention` from its arrays and the names of its rows and columns, each of them another."""
    n_query, n_key = pattern.shape
    return pd.DataFrame(
        {
            "query": _column(queries, np.repeat(np.arange(n_query, dtype=np.int32), n_key)),
            "key": _column(keys, np.tile(np.arange(n_key, dtype=np.int32), n_query)),
            "allowed": allowed.ravel(),
            "weight": np.where(allowed, pattern, np.nan).ravel(),
        }
    )


def _column(names: Sequence[str], rows: Int[np.ndarray, " row"]) -> np.ndarray | pd.Categorical:
    """A name a row; of very many rows each name is kept once."""
    return np.asarray(names)[rows] if len(rows) <= MOST_WRITTEN_OUT else pd.Categorical.from_codes(rows, list(names))
