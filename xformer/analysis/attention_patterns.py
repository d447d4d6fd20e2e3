"""Attention patterns as tables: the weights of a head, scores of all heads, rollout, change between runs, coarse maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters import TaskModel
from xformer.analysis.tables import array_table
from xformer.errors import EditError
from xformer.memory import check_analysis
from xformer.reading import Reading
from xformer.site import Site
from xformer.trace import Trace

MOST_WRITTEN_OUT = 512**2
"""The most cells of a table with names as text; larger ones use categories, which need a tenth of the memory."""
REACH = 24
"""How many queries and keys before and after a cell count as around it."""


def attention(reading: Reading, *, layer: int, head: int, around: tuple[int, int] | None = None) -> pd.DataFrame:
    """One row a cell: query, key (position, from 0, and token), whether the mask allows it, and its weight (none where not).

    `layer` counts the attention layers in their order, `head` the heads of a layer, both from 0; of a long input `around` keeps
    the cells around one, (query, key), up to `REACH` on each side. Of a trace without its masks every cell counts as allowed.
    Raises `EditError` where there is no such layer, head or cell, and `InputError` where a table of all cells is too large.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        around: A cell (query, key) around which every cell is kept.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.attention(reading, layer=2, head=1)
        >>> list(table.columns)
        ['query', 'key', 'allowed', 'weight']
    """
    site = reading.attention_site(layer)
    pattern = reading[f"{site.path}.pattern"][0]  # [head, query, key]
    if not 0 <= head < len(pattern):
        raise EditError(f"{site.path} has heads 0 to {len(pattern) - 1}, got {head}.")
    weights = pattern[head].float().numpy(force=True)  # [query, key]
    mask = reading.get(f"{site.path}.mask")
    allowed = np.True_ if mask is None else mask[0].expand(pattern.shape)[head].numpy(force=True)
    allowed = allowed | (weights > 0)  # a faulty mask lets weight through
    queries, keys = map(numbered, token_names(reading, site, weights.shape))
    if around is None:
        check_analysis("attention", "ask for cells with around=", n=max(weights.shape))
        return pattern_cells(weights, allowed, queries, keys)
    n_query, n_key = weights.shape
    if not (0 <= around[0] < n_query and 0 <= around[1] < n_key):
        raise EditError(f"around is a cell of {n_query} queries and {n_key} keys, counted from 0, got {around}.")
    rows, cols = (slice(max(0, at - REACH), at + REACH + 1) for at in around)
    return pattern_cells(weights[rows, cols], allowed[rows, cols], queries[rows], keys[cols])


def numbered(words: Sequence[str]) -> list[str]:
    """Words with their positions in front, so that repeats stay distinct."""
    return [f"{position} {word}" for position, word in enumerate(words)]


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


def attention_moved(reading: Reading, *, before: Reading) -> pd.DataFrame:
    """How far each head's attention moved from the run `before`, of equal length: layer (its path), head (from 0), moved.

    moved = mean over queries of ½ Σ_key |p_after − p_before|, the share of the attention that went elsewhere (0 to 1).

    Args:
        reading: The run.
        before: The original run.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1", changes="silence:encoder.2.attn.1")
        >>> table = xformer.analysis.attention_moved(ablated, before=reading)
        >>> list(table.columns)
        ['layer', 'head', 'moved']
    """
    rows = []
    for site in reading.attention:
        after, was = (run[f"{site.path}.pattern"][0].double() for run in (reading, before))  # [head, query, key]
        moved = ((after - was).abs().sum(dim=-1) / 2).mean(dim=-1).tolist()  # [head]
        rows += [(site.path, head, share) for head, share in enumerate(moved)]
    return pd.DataFrame(rows, columns=["layer", "head", "moved"])


def stream_moved(reading: Reading, *, before: Reading) -> pd.DataFrame:
    """How far the residual stream moved from the run `before`, of equal length, after each layer.

    Args:
        reading: The run.
        before: The original run.

    Returns:
        A row per layer and position: layer (the path of its last attention), position (from 0), and moved, the length of the
        change as a share of the length of the original vector. No rows where the streams are not recorded.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
        >>> ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1 15", changes="ablate:encoder.2.attn.1")
        >>> table = xformer.analysis.stream_moved(ablated, before=reading)
        >>> table.groupby("layer")["moved"].max().gt(0).tolist()  # nothing moves before the ablated layer
        [False, False, True, True]
    """
    rows = []
    for block, path in {f"{site.stack}.{site.layer}": site.path for site in reading.attention}.items():
        after, was = (run.get(f"{block}.resid_post") for run in (reading, before))  # [batch, pos, d_model]
        if after is None or was is None or after.shape != was.shape:
            continue
        moved = relative_change(after[0].float().numpy(force=True), was[0].float().numpy(force=True))  # [pos]
        rows += [(path, position, share) for position, share in enumerate(moved.tolist())]
    return pd.DataFrame(rows, columns=["layer", "position", "moved"])


def relative_change(
    after: Float[np.ndarray, "pos d_model"], before: Float[np.ndarray, "pos d_model"]
) -> Float[np.ndarray, " pos"]:
    """The length of each vector's change as a share of its length before; not a number counts as no change."""
    lengths = np.maximum(np.linalg.norm(before, axis=-1), 1e-9)
    return np.nan_to_num(np.linalg.norm(after - before, axis=-1) / lengths)


def looks_back_only(reading: Reading, stack: str | None = None) -> bool:
    """Whether every self-attention of a run (of one of its stacks) kept each query from all later keys."""
    paths = [site.path for site in reading.attention if not site.is_cross and stack in (None, site.stack)]
    return all(not reading[f"{path}.mask"].triu(1).any() for path in paths)


MOST_TOKENS = 48
"""The most tokens a side of a rollout; neighbours are pooled beyond it."""


def rollout(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """One row for each cell: after which layer, from 1, how much of the token at `key` could have reached `query`.

    Of more than `MOST_TOKENS` tokens, neighbours are taken together: what any of the keys could have given the queries on
    average, so that rows still sum to 1. Columns: layer, query, key, share.

    Args:
        reading: The run.
        stack: "encoder" or "decoder", where a model has both.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.rollout(reading)
        >>> list(table.columns)
        ['layer', 'query', 'key', 'share']
    """
    names = numbered(reading.tokens_of(stack))
    names = [span(names, *block) for block in blocks(len(names), MOST_TOKENS)]
    reached = rollout_matrices(reading.trace, stack, MOST_TOKENS)
    return array_table({"layer": range(1, 1 + len(reached))}, {"query": names}, {"key": names}, share=reached)


def rollout_matrices(
    trace: Trace, stack: str | None = None, most: int | None = None
) -> Float[Tensor, "layer query key"]:
    """R after each layer of a stack ("encoder" or "decoder", the model's only one by default); rows sum to 1.

    A row that may look at nothing counts as looking at itself. With `most`, each is pooled (see `pooled`) before the next one
    is computed. Raises `EditError` when the trace has no such stack.
    """
    sites = [site for site in trace.sites() if not site.is_cross]
    stack = stack or sites[0].stack
    paths = [site.path for site in sites if site.stack == stack]
    if not paths:
        raise EditError(f"This trace has no stack {stack!r}; its attention layers are {trace.attention_layers()}.")
    reached, found = None, []
    for path in paths:
        pattern = trace[f"{path}.pattern"][0].mean(dim=0)  # [query, key]
        identity = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
        step = 0.5 * torch.where(pattern.sum(dim=-1, keepdim=True) == 0, identity, pattern) + 0.5 * identity
        reached = step if reached is None else step @ reached
        found.append(pooled(reached, most))
    return torch.stack(found)


def blocks(n: int, most: int | None) -> list[tuple[int, int]]:
    """The first and last position of at most `most` blocks of one size that hold n positions (the last may be smaller)."""
    size = 1 if most is None else -(-n // most)
    return [(first, min(first + size, n) - 1) for first in range(0, n, size)]


def span(texts: Sequence[str], first: int, last: int) -> str:
    """The text of a position, or of the ends of a block of several."""
    return texts[first] if first == last else f"{texts[first]} … {texts[last]}"


def pooled(pattern: Float[Tensor, "*rest query key"], most: int | None) -> Float[Tensor, "*rest query_block key_block"]:
    """Pool a pattern to at most `most` × `most` blocks: keys are summed, queries averaged."""
    return _pooled(_pooled(pattern, most, -1, torch.sum), most, -2, torch.mean)


def pooled_keys(rows: Float[Tensor, "*rest key"], most: int | None) -> Float[Tensor, "*rest key_block"]:
    """Pool the keys of single rows."""
    return _pooled(rows, most, -1, torch.sum)


def _pooled(values: Tensor, most: int | None, dim: int, reduce: Callable[..., Tensor]) -> Tensor:
    sizes = [last - first + 1 for first, last in blocks(values.shape[dim], most)]
    if len(sizes) == values.shape[dim]:
        return values
    return torch.stack([reduce(block, dim=dim) for block in values.split(sizes, dim)], dim=dim)


TASK = "task_pattern"
"""The column with how much of the attention is where the task needs it."""

SCORES = ("diagonal", "anti_diagonal", "previous", "next", "first", "entropy")


def head_scores(
    reading: Reading,
    *,
    look: str = "answer",
    positions: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    without_first: bool = False,
) -> pd.DataFrame:
    """One row per head: layer, head (from 0), what the task needs, the six scores, and induction, for the first input.

    Which positions count is the subject's to say (`Input.scored`; `look` is "answer" or "source") unless `positions` are
    given; `keys` are positions of another stream to look at from them, for a decoder whose answer looks at its source. What
    the task needs is missing where no task is known, or where the layer has no part in it.

    Most attention of a large model may rest on the first token (Xiao et al. 2023, arXiv:2309.17453). With
    `without_first` all but the score "first" leave it out, as a query and as a key: rows sum to 1 over the other keys.

    Args:
        reading: The run.
        look: "answer" or "source": the positions that count.
        positions: The positions, from 0; all of them by default.
        keys: Positions of another stream that count as keys.
        without_first: Leave the first token out, as a query and as a key.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.head_scores(reading)
        >>> list(table.columns)
        ['layer', 'head', 'task_pattern', 'diagonal', 'anti_diagonal', 'previous', 'next', 'first', 'entropy',
         'induction']
    """
    if positions is None:
        positions, keys = reading.subject.input.scored(reading.example, look)
    needed = reading.subject.task_scores(reading.trace, reading.example)
    rows, chosen = [], positions
    for site in reading.sites:
        path, pattern = site.path, reading[f"{site.path}.pattern"]
        positions = _without_padding(reading, site, chosen)
        scores = pattern_scores(pattern[0], positions, keys)  # [head, score]
        counted = positions
        if without_first and keys is None and not site.is_cross and pattern.shape[-1] > 1:
            pattern = renormalised(pattern)
            counted = [at for at in (range(pattern.shape[2]) if positions is None else positions) if at]
            first, scores = scores[:, SCORES.index("first")], pattern_scores(pattern[0], counted)
            scores[:, SCORES.index("first")] = first
        repeats = _induction(reading, site, pattern[0], counted) if keys is None else [math.nan] * len(scores)
        task = needed.get(path, [None] * len(scores))
        for head, (values, induction) in enumerate(zip(scores.tolist(), repeats, strict=True)):
            rows.append((path, head, task[head], *values, induction))
    return pd.DataFrame(rows, columns=["layer", "head", TASK, *SCORES, "induction"])


NOTABLE = (TASK, "previous", "next", "anti_diagonal", "diagonal", "induction")
"""The patterns that make a head worth seeing. Attention to the first token is none: most heads of a large model rest there."""
NOTABLE_SHARE, NOTABLE_TIMES, NOTABLE_GAIN, MOST_EVEN = 0.4, 2.0, 0.4, 0.9
"""A notable head has at least this share of its attention on its pattern, and so many times the share of even attention or
so much of the way from there to 1; where even attention has `MOST_EVEN` there, a share tells nothing."""


def notable_heads(reading: Reading, n: int = 5) -> pd.DataFrame:
    """The heads of the first input whose attention follows a known pattern: the clearest of each pattern, then the others.

    Args:
        reading: The run.
        n: At most so many heads.

    Returns:
        A row per head: layer, head (from 0), pattern (one of `NOTABLE`), share (the mean attention on it) and even (the share
        of a head that attends evenly to all keys that it may see). No rows where no head is clear.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
        >>> xformer.analysis.notable_heads(reading, n=1)["pattern"].tolist()
        ['task_pattern']
    """
    of_task = reading.subject.task_scores(reading.trace, reading.example)
    task = reading.subject.task if isinstance(reading.subject, TaskModel) else None
    by_chance = {} if task is None else task.chance_scores(reading.trace, reading.example)
    rows = []
    for site in reading.sites:
        shares = {TASK: zip(of_task[site.path], by_chance[site.path], strict=True)} if site.path in by_chance else {}
        pattern = reading[f"{site.path}.pattern"][0].float()  # [head, query, key]
        if pattern.shape[-2] == pattern.shape[-1]:
            allowed = torch.ones_like(pattern)
            if (mask := reading.get(f"{site.path}.mask")) is not None:
                allowed = mask[0].expand_as(pattern).to(pattern)
            elif site.stack == "decoder" and not site.is_cross:
                allowed = allowed.tril()
            even = allowed / allowed.sum(dim=-1, keepdim=True).clamp_min(1)  # [head, query, key]
            positions = _without_padding(reading, site, None)
            scores = (pattern_scores(one, positions).T.tolist() for one in (pattern, even))  # [score][head] each
            shares |= {name: zip(*pair, strict=True) for name, *pair in zip(SCORES, *scores, strict=True)}
            repeats = (_induction(reading, site, one, positions) for one in (pattern, even))
            shares["induction"] = zip(*repeats, strict=True)
        rows += [
            {"layer": site.path, "head": head, "pattern": name, "share": share, "even": chance}
            for name in NOTABLE
            for head, (share, chance) in enumerate(shares.get(name, ()))
            if chance < MOST_EVEN
            and share >= max(NOTABLE_SHARE, min(NOTABLE_TIMES * chance, chance + NOTABLE_GAIN * (1 - chance)))
        ]
    table = pd.DataFrame(rows, columns=["layer", "head", "pattern", "share", "even"])
    table = table.astype({"head": int, "share": float, "even": float})  # an empty table has no types of its own
    above = (table["share"] - table["even"]).round(3)  # the task's pattern first where another is as clear
    best = table.assign(above=above).sort_values("above", ascending=False, kind="stable")
    best = best.drop_duplicates(["layer", "head"])
    is_first = ~best.duplicated("pattern")
    order = [*best.index[is_first], *best.index[~is_first]]
    return best.loc[order, table.columns].head(n).reset_index(drop=True)


def _induction(
    reading: Reading, site: Site, pattern: Float[Tensor, "head query key"], positions: Sequence[int] | None
) -> list[float]:
    """The induction score of each head of a layer; NaN where queries and keys are not the same tokens."""
    tokens = reading.trace.read_by(site.stack)[0]
    if site.is_cross or len(tokens) != pattern.shape[-1]:  # patches of an image are no tokens
        return [math.nan] * len(pattern)
    return induction_scores(pattern, tokens, positions)


def _without_padding(reading: Reading, site: Site, positions: Sequence[int] | None) -> Sequence[int] | None:
    """The positions that count, as far as they are no padding."""
    real = reading.trace.real(site.query_stack)
    if real is None:
        return positions
    return [at for at in (range(len(real)) if positions is None else positions) if bool(real[at])]


def renormalised(pattern: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """The weights on all keys but the first, each row summing to 1; a row that has nothing else stays 0."""
    others = pattern.clone()
    others[..., 0] = 0
    total = others.sum(dim=-1, keepdim=True)
    return others.div_(torch.where(total > 0, total, 1.0))


def induction_scores(
    pattern: Float[Tensor, "head query key"], tokens: Int[Tensor, " pos"], positions: Sequence[int] | None = None
) -> list[float]:
    """Mean weight on the tokens right after earlier occurrences of the query's token; NaN where no token repeats."""
    counted = range(len(tokens)) if positions is None else positions
    index = torch.tensor(list(counted), dtype=torch.long, device=pattern.device)
    same = tokens[index][:, None] == tokens[index]  # [query, earlier]
    same &= index < index[:, None]
    has_earlier = same.any(dim=1)  # [query]
    if not bool(has_earlier.any()):
        return [math.nan] * len(pattern)
    after = (index + 1).clamp(max=pattern.shape[-1] - 1)  # one that is earlier than a query has a token after it
    rows = pattern[:, index[has_earlier]]  # [head, query, key]
    wanted = rows.new_zeros(rows.shape[1:]).index_add_(1, after, same[has_earlier].to(rows.dtype))  # [query, key]
    return (rows.flatten(1) @ wanted.flatten() / len(wanted)).tolist()


def pattern_scores(
    pattern: Float[Tensor, "head query key"], positions: Sequence[int] | None = None, keys: Sequence[int] | None = None
) -> Float[Tensor, "head score"]:
    """The six scores of each head, in the order of `SCORES`."""
    index = torch.arange(pattern.shape[1]) if positions is None else torch.tensor(list(positions), dtype=torch.long)
    index = index.to(pattern.device)
    if len(index) == 0:
        return pattern.new_zeros(len(pattern), len(SCORES))
    rows = pattern if positions is None else pattern[:, index]  # [head, query, key]: the queries that count
    entropy = -(rows * rows.clamp(min=torch.finfo(rows.dtype).tiny).log2()).sum(dim=-1).mean(dim=-1)
    if keys is not None or positions is not None:
        chosen = index if keys is None else torch.tensor(list(keys), dtype=torch.long, device=pattern.device)
        rows = rows[:, :, chosen]  # … and the keys that count
    mirrored = rows.flip(-1)  # key = last − query
    along = [_along(of, offset) for of, offset in ((rows, 0), (mirrored, 0), (rows, -1), (rows, 1))]
    return torch.stack((*along, rows[:, :, 0].mean(dim=-1), entropy), dim=-1)


def _along(pattern: Float[Tensor, "head query key"], offset: int) -> Float[Tensor, " head"]:
    """Mean weight on key = query + offset, over the queries that have such a key; 0 where none has."""
    n_queries, n_keys = pattern.shape[-2:]
    if not -n_queries < offset < n_keys:
        return pattern.new_zeros(len(pattern))
    return pattern.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)
