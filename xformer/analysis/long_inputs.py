"""Tables of the attention of long inputs, from the exact sums of `xformer.attention_summary`.

    summary = xformer.attention_summary(model, text)
    xformer.analysis.head_sums(summary)                               a row per head
    xformer.analysis.attention_by_distance(summary, layer=3, head=2)
    xformer.analysis.attention_map(summary, layer=3, head=2, queries=(9_000, 9_200))

p is the pattern [query, key]. Queries that are padding are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.attention_sums import AttentionSums
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_index, check_indices
from xformer.layer_path import LayerPath
from xformer.long_inputs import AttentionSummary

HEAD_SUMS = {
    "entropy": "mean over queries of −Σ p ln p / ln n, n permitted keys; 0: one key, 1: uniform attention",
    "largest": "mean over queries of max p",
    "first": "mean over queries after the first token of p on the first token",
    "diagonal": "mean over queries of p on the query's own position",
    "previous": "mean over queries after the first token of p on the position before",
    "distance": "mean of |query − key| over the attention, in positions",
    "other_documents": "mean over queries of Σ p over the keys of other documents; NaN without documents",
}
"""The measures of each head: name → equation."""


def head_sums(summary: AttentionSummary) -> pd.DataFrame:
    """Measure every head of a long input.

    Args:
        summary: The sums of the run.

    Returns:
        A row per head: layer (its path), head (from 0), and the measures of `HEAD_SUMS`; NaN where a measure has no meaning, as
        the previous token in cross-attention.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> table = xformer.analysis.head_sums(summary)
        >>> list(table.columns)
        ['layer', 'head', 'entropy', 'largest', 'first', 'diagonal', 'previous', 'distance', 'other_documents']
    """
    rows = []
    for site in summary.attention:
        found = _measures(summary.sums[site.path], site)
        rows += [
            (site.path, head, *(float(found[name][head]) for name in HEAD_SUMS))
            for head in range(len(found["entropy"]))
        ]
    return pd.DataFrame(rows, columns=["layer", "head", *HEAD_SUMS])


def _measures(sums: AttentionSums, site: LayerPath) -> dict[str, Float[Tensor, " head"]]:
    counted, n = sums.counted, int(sums.counted.sum())
    several = counted & (sums.n_permitted > 1)  # [#head, query]
    normalised = sums.entropy / sums.n_permitted.clamp(min=2).log()
    missing = torch.full((len(sums.entropy),), math.nan)
    found = dict.fromkeys(HEAD_SUMS, missing)
    found["entropy"] = torch.where(several, normalised, 0.0).sum(-1) / several.expand_as(normalised).sum(-1)
    found["largest"] = sums.largest[:, counted].mean(-1)
    if site.is_cross or sums.n_query != sums.n_key:
        return found
    offsets = torch.arange(-(sums.n_query - 1), sums.n_key).double()
    zero = sums.n_query - 1
    after_first = counted.clone()
    if n:
        after_first[int(counted.nonzero()[0])] = False
    found["first"] = sums.first[:, after_first].mean(-1)
    found["diagonal"] = sums.by_offset[:, zero] / n
    found["previous"] = sums.by_offset[:, zero - 1] / (n - 1) if n > 1 else missing
    total = sums.by_offset.double().sum(-1)
    found["distance"] = ((sums.by_offset.double() * offsets.abs()).sum(-1) / total).float()
    if sums.between is not None:
        inside = sums.between.diagonal(dim1=1, dim2=2).sum(-1)
        found["other_documents"] = (sums.between.sum((1, 2)) - inside) / n
    return found


def attention_by_distance(summary: AttentionSummary, *, layer: int, head: int | None = None) -> pd.DataFrame:
    """Measure how far heads look: the share of their attention at each distance, in bins that double.

    Args:
        summary: The sums of the run.
        layer: The attention layer, from 0.
        head: The head, from 0; None: all heads of the layer.

    Returns:
        A row per head and bin: head, from_distance and to_distance (positions, both included; 0 is the query itself, below 0
        are later keys) and share (of the head's attention).

    Raises:
        UnavailableError: Queries and keys of the layer are different positions, as in cross-attention.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> table = xformer.analysis.attention_by_distance(summary, layer=2, head=1)
        >>> round(float(table["share"].sum()), 6)
        1.0
    """
    sums = summary.layer(layer) if head is None else summary.head(layer, head)
    if summary.attention[layer].is_cross or sums.n_query != sums.n_key:
        raise UnavailableError("Distances need queries and keys at the same positions, as in self-attention.")
    n, zero = sums.n_query, sums.n_query - 1
    total = sums.by_offset.sum(-1)  # [head]
    bins = [(0, 0), *((2**at, min(2 ** (at + 1) - 1, n - 1)) for at in range(n.bit_length()) if 2**at < n)]
    later = [(-high, -low) for low, high in bins[1:]]
    if not bool(sums.by_offset[:, zero + 1 :].any()):
        later = []
    rows = []
    for at in range(len(total)) if head is None else [head]:
        for low, high in [*reversed(later), *bins]:
            share = sums.by_offset[at, zero - high : zero - low + 1].sum() / total[at]
            rows.append((at, low, high, float(share)))
    return pd.DataFrame(rows, columns=["head", "from_distance", "to_distance", "share"])


def attention_received(summary: AttentionSummary, *, layer: int, head: int | None = None) -> pd.DataFrame:
    """Measure how much each token is attended to.

    Args:
        summary: The sums of the run.
        layer: The attention layer, from 0.
        head: The head, from 0; None: the mean of the layer's heads.

    Returns:
        A row per key: position (from 0), token and received (Σ over queries of p; all keys together get one per query).

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> round(float(xformer.analysis.attention_received(summary, layer=0)["received"].sum()), 4)
        4.0
    """
    sums = summary.layer(layer) if head is None else summary.head(layer, head)
    received = (sums.received.mean(0) if head is None else sums.received[head]).numpy()
    tokens = _tokens(summary, layer, sums.n_key, side=1)
    return pd.DataFrame({"position": np.arange(sums.n_key), "token": tokens, "received": received})


def attention_on_tokens(summary: AttentionSummary, tokens: Sequence[int] | None = None) -> pd.DataFrame:
    """Measure how much of each head's attention is on some tokens, wherever they stand.

    Args:
        summary: The sums of the run.
        tokens: The ids of the tokens; None: the special tokens of the tokenizer that the input contains.

    Returns:
        A row per head and token: layer (its path), head, token (its label), n (how often it stands in the input) and share (of
        the head's attention).

    Raises:
        UnavailableError: `tokens` is None and the model has no tokenizer.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> xformer.analysis.attention_on_tokens(summary, tokens=[7])["n"].unique().tolist()
        [1]
    """
    if tokens is None and summary.adapter.tokenizer is None:
        raise UnavailableError("This model has no tokenizer, so it has no special tokens; give ids with tokens=.")
    wanted = list(summary.adapter.tokenizer.all_special_ids if tokens is None else tokens)
    rows = []
    for layer, site in enumerate(summary.attention):
        sums, stack = summary.sums[site.path], summary.adapter.shape.stacks_of(site)[1]
        ids = summary.ids_of(stack)
        if stack is None or len(ids) != sums.n_key:
            continue
        for token in wanted:
            here = torch.tensor([one == token for one in ids])
            if bool(here.any()):
                label = _tokens(summary, layer, sums.n_key, side=1)[int(here.nonzero()[0])]
                shares = sums.received[:, here].sum(-1) / sums.received.sum(-1)
                rows += [(site.path, head, label, int(here.sum()), share) for head, share in enumerate(shares.tolist())]
    return pd.DataFrame(rows, columns=["layer", "head", "token", "n", "share"])


def attention_from(summary: AttentionSummary, *, layer: int, head: int, query: int, most: int = 10) -> pd.DataFrame:
    """Return the keys that one query attends to most, with exact weights.

    Args:
        summary: The sums of the run.
        layer: The attention layer, from 0.
        head: The head, from 0.
        query: The position of the query, from 0.
        most: The largest number of keys.

    Returns:
        A row per key, the largest weight first: position (from 0), token and weight.

    Raises:
        InputError: There is no such query, or `most` is not positive.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> len(xformer.analysis.attention_from(summary, layer=2, head=1, query=0, most=2))
        2
    """
    sums = summary.head(layer, head)
    check_index("query", query, sums.n_query)
    check_index("most", most, least=1)
    row = summary.weights(layer, head=head, queries=slice(query, query + 1))[0]
    best = row.topk(min(most, len(row)))
    tokens = _tokens(summary, layer, sums.n_key, side=1)
    keys = best.indices.tolist()
    return pd.DataFrame({"position": keys, "token": [tokens[key] for key in keys], "weight": best.values.tolist()})


def attention_to(summary: AttentionSummary, *, keys: Sequence[int], query: int | None = None) -> pd.DataFrame:
    """Measure how much of one query's attention is on some keys, in every head: for example, which heads find a sentence.

    Args:
        summary: The sums of the run.
        keys: The positions of the keys, from 0.
        query: The last token, or one of the `queries` of `xformer.attention_summary`; None: the last token.

    Returns:
        A row per head of self-attention, the largest weight first: layer (its path), head, weight (Σ p over the keys) and
        uniform (what it would be if all keys that the mask permits got the same weight).

    Raises:
        InputError: There are no such keys, or the weights of the query were not stored.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> table = xformer.analysis.attention_to(summary, keys=[0])
        >>> table["uniform"].unique().tolist()
        [0.25]
    """
    own = [site for site in summary.attention if not site.is_cross]
    n = summary.sums[own[-1].path].n_query
    query, rows = n - 1 if query is None else query, []
    check_indices("keys", keys, n)
    for site in own:
        sums = summary.sums[site.path]
        if sums.n_query != sums.n_key or sums.n_query != n:
            continue
        if query not in sums.rows:
            raise InputError(
                f"The weights of query {query} were not stored; use one of {sorted(sums.rows)}, or queries=[{query}]."
            )
        weights = sums.rows[query][:, list(keys)].sum(-1).tolist()
        permitted = sums.n_permitted[:, query].expand(len(weights)).tolist()
        first, end = sums.permitted[query].tolist()
        n_keys = sum(first <= key < end for key in set(keys))
        rows += [
            (site.path, head, weight, n_keys / max(1, many))
            for head, (weight, many) in enumerate(zip(weights, permitted, strict=True))
        ]
    table = pd.DataFrame(rows, columns=["layer", "head", "weight", "uniform"])
    return table.sort_values("weight", ascending=False, ignore_index=True, kind="stable")


def attention_map(
    summary: AttentionSummary,
    *,
    layer: int,
    head: int,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
    cells: int = 128,
) -> pd.DataFrame:
    """Return a map of one head: blocks of cells with their largest and their mean weight, or single cells of a small part.

    Args:
        summary: The sums of the run.
        layer: The attention layer, from 0.
        head: The head, from 0.
        queries: The first query and the one after the last; None: all.
        keys: The first key and the one after the last; None: all.
        cells: The largest number of rows and of columns of the map.

    Returns:
        A row per block: from_query, to_query, from_key and to_key (positions, both included), largest and mean. Where a part
        has more than `cells` positions, blocks begin at multiples of their size.

    Raises:
        InputError: A range is empty or outside the input.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> table = xformer.analysis.attention_map(summary, layer=2, head=1, queries=(1, 3))
        >>> table[["from_query", "to_query"]].drop_duplicates().values.tolist()
        [[1, 1], [2, 2]]
    """
    sums = summary.head(layer, head)
    check_index("cells", cells, least=1)
    (q0, q1), (k0, k1) = _range("queries", queries, sums.n_query), _range("keys", keys, sums.n_key)
    size = 2 ** math.ceil(math.log2(max(1, -(-max(q1 - q0, k1 - k0) // cells))))
    q0, k0 = q0 // size * size, k0 // size * size
    n_rows, n_cols = -(-(q1 - q0) // size), -(-(k1 - k0) // size)
    if size >= sums.block:
        step = size // sums.block
        part = [
            one[head, q0 // sums.block :, k0 // sums.block :][: n_rows * step, : n_cols * step]
            for one in (sums.block_max, sums.block_sum)
        ]
    else:
        weights = summary.weights(
            layer, head=head, queries=slice(q0, q0 + n_rows * size), keys=slice(k0, k0 + n_cols * size)
        )
        step, part = size, [weights, weights]
    largest, total = (_pooled(one, step, n_rows, n_cols, pool) for one, pool in zip(part, ("max", "sum"), strict=True))
    rows, cols = np.arange(n_rows) * size + q0, np.arange(n_cols) * size + k0
    to_query, to_key = np.minimum(rows + size, sums.n_query) - 1, np.minimum(cols + size, sums.n_key) - 1
    n_cells = np.outer(to_query - rows + 1, to_key - cols + 1)
    by_row, by_col = (np.repeat(np.arange(n_rows), n_cols), np.tile(np.arange(n_cols), n_rows))
    return pd.DataFrame(
        {
            "from_query": rows[by_row],
            "to_query": to_query[by_row],
            "from_key": cols[by_col],
            "to_key": to_key[by_col],
            "largest": largest.ravel(),
            "mean": (total / n_cells).ravel(),
        }
    )


def between_documents(summary: AttentionSummary, *, layer: int, head: int) -> pd.DataFrame:
    """Measure the attention from each document of a packed input to each other.

    Args:
        summary: The sums of the run, made with `documents`.
        layer: The attention layer, from 0.
        head: The head, from 0.

    Returns:
        A row per pair: query_document, key_document and share (of the attention of the first that is on the second).

    Raises:
        UnavailableError: The summary was made without `documents`.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9", documents=[0, 0, 1, 1])
        >>> len(xformer.analysis.between_documents(summary, layer=0, head=0))
        4
    """
    between = summary.head(layer, head).between
    if between is None:
        raise UnavailableError("This summary has no documents; give their numbers with documents=, one for each token.")
    share = between[head] / between[head].sum(-1, keepdim=True)
    n = len(share)
    rows = [(one, other, float(share[one, other])) for one in range(n) for other in range(n)]
    return pd.DataFrame(rows, columns=["query_document", "key_document", "share"])


def _pooled(x: Tensor, step: int, n_rows: int, n_cols: int, pool: str) -> np.ndarray:
    """The maximum or the sum of each block of `step` × `step` cells; those at the end may be smaller."""
    x = F.pad(x, (0, n_cols * step - x.shape[1], 0, n_rows * step - x.shape[0]))
    blocks = x.view(n_rows, step, n_cols, step)
    return (blocks.amax((1, 3)) if pool == "max" else blocks.sum((1, 3))).numpy(force=True)


def _range(name: str, given: Sequence[int] | None, n: int) -> tuple[int, int]:
    if given is None:
        return 0, n
    if len(given) != 2 or not 0 <= given[0] < given[1] <= n:
        raise InputError(
            f"{name} must be a first position and one after the last, between 0 and {n}, got {given}; try (0, {n})."
        )
    return given[0], given[1]


def _tokens(summary: AttentionSummary, layer: int, n: int, side: int) -> tuple[str, ...]:
    """The tokens at the queries (side 0) or keys (side 1) of a layer; numbers where they are positions of another input."""
    stack = summary.adapter.shape.stacks_of(summary.attention[layer])[side]
    tokens = summary.tokens_of(stack) if stack is not None else ()
    return tokens if len(tokens) == n else tuple(map(str, range(n)))
