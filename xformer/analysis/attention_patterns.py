"""Attention patterns as tables: weights of a head, scores of all heads, rollout, and the change between runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.adapters import TaskModel
from xformer.adapters.adapter import ADDED
from xformer.adapters.capture_backends import sees_later
from xformer.analysis.tables import array_table
from xformer.arguments import Count
from xformer.errors import EditError, InputError, UnavailableError
from xformer.formatting import check_indices, check_option
from xformer.layer_path import STACKS, LayerPath
from xformer.memory import check_analysis
from xformer.pooling import block_names, pool_pattern
from xformer.reading import Reading
from xformer.trace import Trace

Pattern = Float[Tensor, "head query key"]
MAX_WRITTEN_OUT = 512**2
"""The most cells of a table whose names are text; larger tables use categories, which need a tenth of the memory."""
REACH = 24
"""How many queries and keys on each side of a cell `attention` keeps with `around`."""


def attention(reading: Reading, *, layer: int, head: int, around: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return the attention weights of one head, a row per query and key.

    Args:
        reading: The run.
        layer: The attention layer, counted from 0 in the order of the model.
        head: The head of the layer, from 0.
        around: For a long input, a cell (query, key) around which cells are kept, up to `REACH` on each side.

    Returns:
        A row per cell: query and key (position, from 0, and token), allowed (whether the mask permits the cell; without a
        recorded mask always True) and weight (NaN where not allowed).

    Raises:
        EditError: If the layer, head or cell does not exist.
        InputError: If a table of all cells would be too large.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.attention(reading, layer=2, head=1)
        >>> list(table.columns)
        ['query', 'key', 'allowed', 'weight']
    """
    site = reading.attention_path(layer)
    pattern = reading[f"{site.path}.pattern"][0]  # [head, query, key]
    if not 0 <= head < len(pattern):
        raise EditError(f"{site.path} has heads 0 to {len(pattern) - 1}, got {head}.")
    weights = pattern[head].float().numpy(force=True)  # [query, key]
    mask = reading.get(f"{site.path}.mask")
    allowed = np.True_ if mask is None else mask[0].expand(pattern.shape)[head].numpy(force=True)
    allowed = allowed | (weights > 0)  # a faulty mask can let weight through
    queries, keys = map(numbered, token_names(reading, site, weights.shape))
    if around is None:
        check_analysis("attention", "select cells with around=", n=max(weights.shape))
        return pattern_cells(weights, allowed, queries, keys)
    n_query, n_key = weights.shape
    if not (0 <= around[0] < n_query and 0 <= around[1] < n_key):
        raise EditError(f"around is a cell of {n_query} queries and {n_key} keys, counted from 0, got {around}.")
    rows, cols = (slice(max(0, at - REACH), at + REACH + 1) for at in around)
    return pattern_cells(weights[rows, cols], allowed[rows, cols], queries[rows], keys[cols])


def numbered(words: Sequence[str]) -> list[str]:
    """Prefix words with their positions, so that repeated words stay distinct."""
    return [f"{position} · {word}" for position, word in enumerate(words)]


def names_at(reading: Reading, stack: str | None, n: int) -> tuple[str, ...]:
    """Return the tokens that a stack reads, or numbers if it has other than `n` positions, as with those that a model adds."""
    tokens = reading.tokens_of(stack)
    return tokens if len(tokens) == n else tuple(map(str, range(n)))


def token_names(reading: Reading, site: LayerPath, shape: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tokens at the queries and at the keys of a layer whose patterns end in the axes `shape`, [query, key].

    Positions of another input, or of the model itself, are numbered.
    """
    stacks, own = reading.adapter.shape.stacks_of(site), own_keys(reading, site, shape)
    if None not in stacks and len(own) < shape[-1]:  # the others are those of a prefix or of a cache
        tokens = reading.tokens_of(site.query_stack)
        before, after = own.start, shape[-1] - own.stop
        around = [f"earlier {at + 1}" for at in range(before)], [f"empty {at + 1}" for at in range(after)]
        return tokens, (*around[0], *tokens, *around[1])
    sides = zip(stacks, shape[-2:], strict=True)
    queries, keys = (tuple(map(str, range(n))) if stack is None else names_at(reading, stack, n) for stack, n in sides)
    return queries, keys


def own_keys(reading: Reading, site: LayerPath, shape: Sequence[int]) -> range:
    """Return the keys at the positions of the queries of a layer whose patterns end in the axes `shape`, [query, key].

    A cache or a prefix adds keys to those of the input. Under a causal mask, the last key of each query is its own. Without
    one, or in cross-attention, all keys count.
    """
    n_query, n_key = shape[-2:]
    mask = reading.get(f"{site.path}.mask")
    if site.is_cross or n_key <= n_query or n_query != len(reading.tokens_of(site.query_stack)) or mask is None:
        return range(n_key)
    allowed = mask[0].reshape(-1, n_query, n_key).any(dim=0)  # [query, key]
    last = allowed.long().cumsum(dim=-1).argmax(dim=-1) - torch.arange(n_query, device=allowed.device)
    first = int(last[allowed.any(dim=-1)].max()) if bool(allowed.any()) else n_key
    return range(first, first + n_query) if first + n_query <= n_key else range(n_key)


def _own_pattern(
    reading: Reading, site: LayerPath, pattern: Pattern, positions: Sequence[int] | None
) -> list[int] | None:
    """Return the keys at the query positions if a layer has others as well, else None."""
    own = own_keys(reading, site, pattern.shape)
    if len(own) == pattern.shape[-1]:
        return None
    return list(own) if positions is None else [own[at] for at in positions]


def pattern_cells(
    pattern: Float[np.ndarray, "query key"],
    allowed: Bool[np.ndarray, "query key"],
    queries: Sequence[str],
    keys: Sequence[str],
) -> pd.DataFrame:
    """Build the table of `attention` from its arrays and the names of its rows and columns, which must be distinct."""
    rows, columns = (at.ravel() for at in np.indices(pattern.shape, dtype=np.int32))
    named = {"query": _column(queries, rows), "key": _column(keys, columns)}
    return pd.DataFrame({**named, "allowed": allowed.ravel(), "weight": np.where(allowed, pattern, np.nan).ravel()})


def _column(names: Sequence[str], rows: Int[np.ndarray, " row"]) -> np.ndarray | pd.Categorical:
    """Return a name per row; with very many rows each name is stored once."""
    return np.asarray(names)[rows] if len(rows) <= MAX_WRITTEN_OUT else pd.Categorical.from_codes(rows, list(names))


def attention_moved(reading: Reading, *, before: Reading) -> pd.DataFrame:
    """Measure how far each head's attention moved from the run `before`, whose input has the same length.

    moved = mean over queries of ½ Σ_key |p_after − p_before|, the share of the attention that went elsewhere.

    Args:
        reading: The changed run.
        before: The original run.

    Returns:
        A row per head: layer (its path), head (from 0) and moved (0 to 1).

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1", edits="ablate:encoder.2.attn.1")
        >>> table = xformer.analysis.attention_moved(ablated, before=reading)
        >>> list(table.columns)
        ['layer', 'head', 'moved']
    """
    check_alike(reading, before)
    rows = []
    for site in reading.attention:
        after, was = (run[f"{site.path}.pattern"][0].double() for run in (reading, before))  # [head, query, key]
        moved = ((after - was).abs().sum(dim=-1) / 2).mean(dim=-1).tolist()  # [head]
        rows += [(site.path, head, share) for head, share in enumerate(moved)]
    return pd.DataFrame(rows, columns=["layer", "head", "moved"])


def check_alike(reading: Reading, before: Reading | None) -> None:
    """Raise `InputError` unless the run `before` is of a model with the same layers, on an input of the same length."""
    if before is None:
        return
    shapes = [
        (run.adapter.shape.heads, run.adapter.shape.neurons, run.adapter.shape.d_model) for run in (reading, before)
    ]
    stacks = dict.fromkeys(site.stack for site in reading.attention)
    if shapes[0] != shapes[1] or any(len(reading.ids(stack)) != len(before.ids(stack)) for stack in stacks):
        raise InputError(
            "before must be a run of the same model, or of one with the same layers, on an input of the same length."
        )


def stream_moved(reading: Reading, *, before: Reading) -> pd.DataFrame:
    """Measure how far the residual stream moved from the run `before`, whose input has the same length, after each layer.

    Args:
        reading: The changed run.
        before: The original run.

    Returns:
        A row per layer and position: layer (the path of its last attention), position (from 0), and moved (the norm of the
        change divided by the norm of the original vector). No rows if the residual stream was not recorded.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
        >>> ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1 15", edits="ablate:encoder.2.attn.1")
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
    """Return the norm of each vector's change divided by its original norm; NaN counts as no change."""
    lengths = np.maximum(np.linalg.norm(before, axis=-1), 1e-9)
    return np.nan_to_num(np.linalg.norm(after - before, axis=-1) / lengths)


def looks_back_only(reading: Reading, stack: str | None = None) -> bool:
    """Return whether all self-attention of a run (or of one of its stacks) masks later keys."""
    paths = [site.path for site in reading.attention if not site.is_cross and stack in (None, site.stack)]
    return not any(sees_later(reading[f"{path}.mask"]) for path in paths)


MAX_TOKENS = 48
"""The most tokens per side of a rollout; beyond it, neighbouring tokens are pooled."""


def rollout(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """Compute attention rollout: how much of the token at `key` could have reached `query` after each layer.

    Each layer contributes ½ (mean pattern of its heads) + ½ I, and layers are multiplied (Abnar and Zuidema 2020,
    arXiv:2005.00928). Beyond `MAX_TOKENS` tokens, neighbours are pooled: keys are summed and queries averaged, so that each
    row still sums to 1.

    Args:
        reading: The run.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        A row per layer and cell: layer (from 1), query and key (position and token, or a block of them) and share.

    Raises:
        EditError: If the model has no such stack.
        UnavailableError: If its layers attend over different positions.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.rollout(reading)
        >>> list(table.columns)
        ['layer', 'query', 'key', 'share']
    """
    check_option("stack", stack, STACKS)
    n = reading[f"{_own_layers(reading.trace, stack)[0]}.pattern"].shape[-1]
    names = block_names(numbered(names_at(reading, stack, n)), MAX_TOKENS)
    reached = rollout_matrices(reading.trace, stack, MAX_TOKENS)
    return array_table({"layer": range(1, 1 + len(reached))}, {"query": names}, {"key": names}, share=reached)


def rollout_matrices(
    trace: Trace, stack: str | None = None, most: int | None = None
) -> Float[Tensor, "layer query key"]:
    """Compute the rollout after each layer of a stack ("encoder" or "decoder", by default the first); rows sum to 1.

    A row without any permitted key counts as attending to itself. With `most`, each matrix is pooled
    (`pool_pattern`) before the next one is computed.

    Raises:
        EditError: The trace has no such stack.
        UnavailableError: Its layers attend over different positions.
    """
    reached, found = None, []
    for path in _own_layers(trace, stack):
        weights = trace[f"{path}.pattern"]  # [batch, head, query, key]
        n = weights.shape[-1] if reached is None else len(reached)
        if weights.shape[-2:] != (n, n) or len(weights) != len(trace.tokens):
            raise UnavailableError(
                "Rollout needs queries and keys at the same positions in all layers; those of this model differ, as with "
                "windows, stages, two towers or earlier keys."
            )
        pattern = weights[0].mean(dim=0)  # [query, key]
        identity = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
        step = 0.5 * torch.where(pattern.sum(dim=-1, keepdim=True) == 0, identity, pattern) + 0.5 * identity
        reached = step if reached is None else step @ reached
        found.append(pool_pattern(reached, most))
    return torch.stack(found)


def _own_layers(trace: Trace, stack: str | None) -> list[str]:
    """The paths of the self-attention of a stack, by default the first. Raises `EditError` if there is none."""
    sites = [site for site in trace.layer_paths() if not site.is_cross]
    paths = [site.path for site in sites if site.stack == (stack or sites[0].stack)]
    if not paths:
        raise EditError(f"This trace has no stack {stack!r}; its attention layers are {trace.attention_layers()}.")
    return paths


TASK = "task_pattern"
"""The column with the share of attention that is on the keys the task requires."""

SCORES = ("diagonal", "anti_diagonal", "previous", "next", "first", "entropy")


def head_scores(
    reading: Reading,
    *,
    look: str = "answer",
    positions: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    without_first: bool = False,
) -> pd.DataFrame:
    """Score how each head of the first input attends, by its mean weight on simple patterns.

    Much of the attention of a large model may rest on the first token (Xiao et al. 2023, arXiv:2309.17453). With
    `without_first`, every score but "first" leaves that token out, as query and as key; rows are renormalised over the other
    keys.

    Args:
        reading: The run.
        look: The positions that count: "answer" or "source" (see `Input.scored_positions`). Ignored if `positions` are given.
        positions: The query positions, from 0, that count; by default those of `look`.
        keys: The positions of another stack that count as keys, for a decoder whose answer attends to its source.
        without_first: Leave the first token out, as query and as key.

    Returns:
        A row per head: layer (its path), head (from 0), task_pattern (the share of attention that is where the task requires
        it; None if that is unknown or the layer has no part in it), the mean weights on the query's own position (diagonal),
        on its mirror position (anti_diagonal), on the previous, the next and the first position, entropy (mean over queries,
        in bits), and induction (mean weight on the token after an earlier occurrence of the query's token; NaN if no token
        repeats).

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.head_scores(reading)
        >>> list(table.columns)
        ['layer', 'head', 'task_pattern', 'diagonal', 'anti_diagonal', 'previous', 'next', 'first', 'entropy',
         'induction']
    """
    check_option("look", look, ("answer", "source"))
    if positions is None:
        positions, keys = reading.adapter.input.scored_positions(reading.example, look)
    needed = reading.adapter.task_scores(reading.trace, reading.example)
    rows, chosen = [], positions
    for site in reading.layer_paths:
        path, pattern = site.path, reading[f"{site.path}.pattern"]
        check_indices("positions", chosen or (), pattern.shape[2])
        check_indices("keys", keys or (), pattern.shape[3])
        positions = _without_padding(reading, site, chosen)
        own = _own_pattern(reading, site, pattern, positions) if keys is None else keys
        scores = pattern_scores(pattern[0], positions, own)  # [head, score]
        counted = positions
        if without_first and own is None and not site.is_cross and pattern.shape[-1] > 1:
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
"""The patterns that make a head notable. Attention to the first token is not one: most heads of a large model rest there."""
NOTABLE_SHARE, NOTABLE_TIMES, NOTABLE_GAIN, MAX_CHANCE = 0.4, 2.0, 0.4, 0.9
"""A head is notable if its share of attention on a pattern is at least `NOTABLE_SHARE`, and is either `NOTABLE_TIMES` the share
of uniform attention or `NOTABLE_GAIN` of the way from there to 1. Patterns on which uniform attention has `MAX_CHANCE` or more
are skipped."""


def notable_heads(reading: Reading, n: Count = 5) -> pd.DataFrame:
    """List the heads of the first input whose attention follows a known pattern: the clearest of each pattern, then the rest.

    Args:
        reading: The run.
        n: The largest number of heads.

    Returns:
        A row per head: layer (its path), head (from 0), pattern (one of `NOTABLE`), share (the mean attention on it) and even
        (the share of a head that attends uniformly to all permitted keys). No rows if no head follows a pattern clearly.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
        >>> xformer.analysis.notable_heads(reading, n=1)["pattern"].tolist()
        ['task_pattern']
    """
    of_task = reading.adapter.task_scores(reading.trace, reading.example)
    task = reading.adapter.task if isinstance(reading.adapter, TaskModel) else None
    by_chance = {} if task is None else task.chance_scores(reading.trace, reading.example)
    looked, rows = _scored(reading), []
    for site in reading.layer_paths:
        shares = {TASK: zip(of_task[site.path], by_chance[site.path], strict=True)} if site.path in by_chance else {}
        pattern = reading[f"{site.path}.pattern"][0].float()  # [head, query, key]
        if pattern.shape[-2] == pattern.shape[-1]:
            even = _even(reading, site)
            positions = _without_padding(reading, site, looked)
            scores = (pattern_scores(one, positions).T.tolist() for one in (pattern, even))  # [score][head] each
            shares |= {name: zip(*pair, strict=True) for name, *pair in zip(SCORES, *scores, strict=True)}
            repeats = (_induction(reading, site, one, positions) for one in (pattern, even))
            shares["induction"] = zip(*repeats, strict=True)
        rows += [
            (site.path, head, name, share, chance)
            for name in NOTABLE
            for head, (share, chance) in enumerate(shares.get(name, ()))
            if _is_clear(share, chance)
        ]
    table = pd.DataFrame(rows, columns=["layer", "head", "pattern", "share", "even"])
    table = table.astype({"head": int, "share": float, "even": float})  # an empty table has no column types
    above = (table["share"] - table["even"]).round(3)  # rounded, so that the task's pattern wins over one as clear
    best = table.assign(above=above).sort_values("above", ascending=False, kind="stable")
    best = best.drop_duplicates(["layer", "head"])
    is_first = ~best.duplicated("pattern")
    order = [*best.index[is_first], *best.index[~is_first]]
    return best.loc[order, table.columns].head(n).reset_index(drop=True)


def _is_clear(share: float, chance: float) -> bool:
    """Whether a share of attention is far above that of uniform attention."""
    least = max(NOTABLE_SHARE, min(NOTABLE_TIMES * chance, chance + NOTABLE_GAIN * (1 - chance)))
    return chance < MAX_CHANCE and share >= least


def _scored(reading: Reading) -> Sequence[int] | None:
    """Return the positions of `head_scores`, or all (None) where these count an answer's attention to its source."""
    positions, keys = reading.adapter.input.scored_positions(reading.example, "answer")
    return positions if keys is None else None


def _even(reading: Reading, site: LayerPath) -> Pattern:
    """Return the pattern of heads that attend uniformly to all permitted keys; rows without any are 0."""
    pattern = reading[f"{site.path}.pattern"][0].float()
    allowed = torch.ones_like(pattern)
    if (mask := reading.get(f"{site.path}.mask")) is not None:
        allowed = mask[0].expand_as(pattern).to(pattern)
    elif site.stack == "decoder" and not site.is_cross:
        allowed = allowed.tril()
    return allowed / allowed.sum(dim=-1, keepdim=True).clamp_min(1)


ALMOST_EVEN = 0.1
"""Largest share of a head's attention that differs from uniform attention, for a head that is called almost uniform."""


@dataclass(frozen=True)
class Focus:
    """What the queries of a head attend to, for a head without one of the patterns in `NOTABLE`."""

    kind: Literal["one_token", "uniform", "one_key", "none"]
    """All queries on one token; uniform over the permitted keys; a mask that leaves each query one key; none of these."""
    share: float = math.nan
    """The mean attention on the token; for "uniform", the mean share that differs from uniform attention."""
    even: float = math.nan
    """The mean attention of a uniform head on the token."""
    keys: tuple[int, ...] = ()
    """The positions of the token."""


def focus(reading: Reading, *, layer: int, head: int) -> Focus:
    """Find what the queries of `head_scores` attend to in one head: one token, wherever it stands, or all keys alike.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.

    Example:
        >>> import xformer
        >>> causal = xformer.read("checkpoints/reverse-small", "3 7 12 9", edits=[xformer.edits.set_causal(True)])
        >>> xformer.analysis.attention_patterns.focus(causal, layer=1, head=0).keys
        (0,)
    """
    site = reading.attention_path(layer)
    real = _without_padding(reading, site, None if site.is_cross else _scored(reading))
    queries = slice(None) if real is None else list(real)
    weights = reading[f"{site.path}.pattern"][0].float()[head][queries]  # [query, key]
    even = _even(reading, site)[head][queries]
    if not bool((even > 0).any()):
        return Focus("none")
    if bool(((even > 0).sum(dim=-1) <= 1).all()):
        return Focus("one_key")
    off = (weights - even).abs().sum(dim=-1).mean().item() / 2  # total variation distance
    if off <= ALMOST_EVEN:
        return Focus("uniform", off)
    shares, chances = weights.mean(dim=0).tolist(), even.mean(dim=0).tolist()  # [key]
    stack = reading.adapter.shape.stacks_of(site)[1]
    tokens = [] if stack is None else reading.trace.read_by(stack)[0].tolist()
    places: dict[int, list[int]] = {}
    for key in range(len(shares)):  # image patches are not tokens
        places.setdefault(tokens[key] if len(tokens) == len(shares) else key, []).append(key)
    best = max(places.values(), key=lambda keys: sum(shares[key] for key in keys) - sum(chances[key] for key in keys))
    share, chance = (sum(values[key] for key in best) for values in (shares, chances))
    return Focus("one_token", share, chance, tuple(best)) if _is_clear(share, chance) else Focus("none")


def _induction(reading: Reading, site: LayerPath, pattern: Pattern, positions: Sequence[int] | None) -> list[float]:
    """Return the induction score of each head of a layer; NaN if queries and keys are not the same tokens."""
    tokens = reading.trace.read_by(site.stack)[0]
    is_own = not site.is_cross and None not in reading.adapter.shape.stacks_of(site)
    if not is_own or len(tokens) != pattern.shape[-1]:  # image patches are not tokens
        return [math.nan] * len(pattern)
    tokens = torch.where(tokens == ADDED, ADDED - torch.arange(len(tokens), device=tokens.device), tokens)  # no repeats
    return induction_scores(pattern, tokens, positions)


def _without_padding(reading: Reading, site: LayerPath, positions: Sequence[int] | None) -> Sequence[int] | None:
    """Return the positions that count, without padding."""
    stack = reading.adapter.shape.stacks_of(site)[0]
    real = None if stack is None else reading.trace.real(stack)
    if real is None:
        return positions
    return [at for at in (range(len(real)) if positions is None else positions) if bool(real[at])]


def renormalised(pattern: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """Renormalise each row over all keys but the first; a row with no weight on them stays 0."""
    others = pattern.clone()
    others[..., 0] = 0
    total = others.sum(dim=-1, keepdim=True)
    return others.div_(torch.where(total > 0, total, 1.0))


def induction_scores(
    pattern: Pattern, tokens: Int[Tensor, " pos"], positions: Sequence[int] | None = None
) -> list[float]:
    """Return the mean weight on the tokens right after earlier occurrences of the query's token; NaN if no token repeats."""
    counted = range(len(tokens)) if positions is None else positions
    index = torch.tensor(list(counted), dtype=torch.long, device=pattern.device)
    same = tokens[index][:, None] == tokens[index]  # [query, earlier]
    same &= index < index[:, None]
    has_earlier = same.any(dim=1)  # [query]
    if not bool(has_earlier.any()):
        return [math.nan] * len(pattern)
    after = (index + 1).clamp(max=pattern.shape[-1] - 1)  # a token before a query always has a token after it
    rows = pattern[:, index[has_earlier]]  # [head, query, key]
    wanted = rows.new_zeros(rows.shape[1:]).index_add_(1, after, same[has_earlier].to(rows.dtype))  # [query, key]
    return (rows.flatten(1) @ wanted.flatten() / len(wanted)).tolist()


def pattern_scores(
    pattern: Pattern, positions: Sequence[int] | None = None, keys: Sequence[int] | None = None
) -> Float[Tensor, "head score"]:
    """Return the six scores of each head, in the order of `SCORES`; 0 if no position counts."""
    index = torch.arange(pattern.shape[1]) if positions is None else torch.tensor(list(positions), dtype=torch.long)
    index = index.to(pattern.device)
    if len(index) == 0:
        return pattern.new_zeros(len(pattern), len(SCORES))
    rows = pattern if positions is None else pattern[:, index]  # [head, query, key]: the queries that count
    entropy = -(rows * rows.clamp(min=torch.finfo(rows.dtype).tiny).log2()).sum(dim=-1).mean(dim=-1)
    if keys is not None or positions is not None:
        chosen = index if keys is None else torch.tensor(list(keys), dtype=torch.long, device=pattern.device)
        rows = rows[:, :, chosen]  # and the keys that count
    mirrored = rows.flip(-1)  # key = last − query
    along = [_along(weights, offset) for weights, offset in ((rows, 0), (mirrored, 0), (rows, -1), (rows, 1))]
    return torch.stack((*along, rows[:, :, 0].mean(dim=-1), entropy), dim=-1)


def _along(pattern: Pattern, offset: int) -> Float[Tensor, " head"]:
    """Average the weight on key = query + offset over the queries that have such a key; 0 if none has."""
    n_queries, n_keys = pattern.shape[-2:]
    if not -n_queries < offset < n_keys:
        return pattern.new_zeros(len(pattern))
    return pattern.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)
