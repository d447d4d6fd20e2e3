"""What a head does, as shares of its attention: numbers for each head, averaged over the queries of one input.

    diagonal        on the token itself                 key = query
    anti-diagonal   on the mirrored token               key = length − 1 − query
    previous        on the token before                 key = query − 1      (queries that have one)
    next            on the token after                  key = query + 1      (queries that have one)
    first           on the first token                  key = 0
    induction       on what followed an earlier occurrence of the same token   (queries whose token came before;
                    Olsson et al. 2022, arXiv:2209.11895); a number only where a token repeats
    entropy         how spread out a row is: −Σ p log₂ p in bits, 0 for a single key, log₂(keys) for all alike

Only the tokens named by `positions` count as queries and keys (a task leaves its special tokens out); attention that goes
elsewhere counts for nothing. Entropy is taken over the whole rows of these queries. Between two streams (cross-attention, or
a decoder's answer looking back at its source) the i-th of the `positions` is compared with the i-th of the `keys`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.reading import Reading
from xformer.site import Site

TASK = "the task’s"
"""The column of what the task needs."""
SCORES = ("diagonal", "anti-diagonal", "previous", "next", "first", "entropy")


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

    Most of a large model's attention may rest on the first token, whatever it is (Xiao et al. 2023, arXiv:2309.17453). With
    `without_first` all but the score "first" leave it out, as a query and as a key: rows sum to 1 over the other keys.
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
            pattern, counted = renormalised(pattern), _others(positions, pattern.shape[2])
            first, scores = scores[:, SCORES.index("first")], pattern_scores(pattern[0], counted)
            scores[:, SCORES.index("first")] = first
        tokens = reading.trace.read_by(site.stack)
        is_one_stream = (
            keys is None and not site.is_cross and tokens.shape[1] == pattern.shape[2]
        )  # patches do not repeat
        repeats = induction_scores(pattern[0], tokens[0], counted) if is_one_stream else [math.nan] * len(scores)
        task = needed.get(path, [None] * len(scores))
        for head, (values, induction) in enumerate(zip(scores.tolist(), repeats, strict=True)):
            row = {"layer": path, "head": head, TASK: task[head], **dict(zip(SCORES, values, strict=True))}
            rows.append(row | {"induction": induction})
    return pd.DataFrame(rows, columns=["layer", "head", TASK, *SCORES, "induction"])


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
    return others / torch.where(total > 0, total, 1.0)


def _others(positions: Sequence[int] | None, n: int) -> list[int]:
    return [position for position in (range(n) if positions is None else positions) if position]


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
    return torch.stack(
        (
            _along(rows, 0),
            _mirrored(rows),
            _along(rows, -1),
            _along(rows, 1),
            rows[:, :, 0].mean(dim=-1),
            entropy,
        ),
        dim=-1,
    )


def _mirrored(pattern: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    """Mean weight on key = last − query."""
    n = min(pattern.shape[1:])
    queries = torch.arange(n, device=pattern.device)
    return pattern[:, queries, pattern.shape[2] - 1 - queries].mean(dim=-1)


def _along(pattern: Float[Tensor, "head query key"], offset: int) -> Float[Tensor, " head"]:
    """Mean weight on key = query + offset, over the queries that have such a key; 0 where none has."""
    n_queries, n_keys = pattern.shape[-2:]
    if not -n_queries < offset < n_keys:
        return pattern.new_zeros(len(pattern))
    return pattern.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)
