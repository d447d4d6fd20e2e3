"""What a head does, as shares of its attention: six numbers for each head, averaged over the queries of one input.

    diagonal        on the token itself                 key = query
    anti-diagonal   on the mirrored token               key = length − 1 − query
    previous        on the token before                 key = query − 1      (queries that have one)
    next            on the token after                  key = query + 1      (queries that have one)
    first           on the first token                  key = 0
    entropy         how spread out a row is: −Σ p log₂ p in bits, 0 for a single key, log₂(keys) for all alike

Only the tokens named by `positions` count as queries and keys (a task leaves its special tokens out); attention that goes
elsewhere counts for nothing. Entropy is taken over the whole rows of these queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.trace import Trace

SCORES = ("diagonal", "anti-diagonal", "previous", "next", "first", "entropy")


def head_scores(trace: Trace, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """One row a self-attention head: layer, head, and the six scores, for the first input of the trace."""
    rows = []
    for path, pattern in trace.patterns().items():
        if path.endswith("cross_attn"):
            continue
        scores = pattern_scores(pattern[0], positions)  # [head, score]
        for head, values in enumerate(scores.tolist()):
            rows.append({"layer": path, "head": head, **dict(zip(SCORES, values, strict=True))})
    return pd.DataFrame(rows, columns=["layer", "head", *SCORES])


def pattern_scores(
    pattern: Float[Tensor, "head query key"], positions: Sequence[int] | None = None
) -> Float[Tensor, "head score"]:
    """The six scores of each head, in the order of `SCORES`."""
    index = torch.arange(pattern.shape[1]) if positions is None else torch.tensor(list(positions), dtype=torch.long)
    index = index.to(pattern.device)
    if len(index) == 0:
        return pattern.new_zeros(len(pattern), len(SCORES))
    rows = pattern[:, index]  # [head, query, key]: the queries that count
    entropy = -torch.special.xlogy(rows, rows).sum(dim=-1).mean(dim=-1) / math.log(2)
    if positions is not None:
        rows = rows[:, :, index]  # … and the keys that count
    return torch.stack(
        (
            _along(rows, 0),
            _along(rows.flip(-1), 0),
            _along(rows, -1),
            _along(rows, 1),
            rows[:, :, 0].mean(dim=-1),
            entropy,
        ),
        dim=-1,
    )


def _along(pattern: Float[Tensor, "head query key"], offset: int) -> Float[Tensor, " head"]:
    """Mean weight on key = query + offset, over the queries that have such a key; 0 where none has."""
    if pattern.shape[-1] <= abs(offset):
        return pattern.new_zeros(len(pattern))
    return pattern.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)
