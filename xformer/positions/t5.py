"""T5's relative bias: how far a key is from the query is put into one of 32 buckets, and each head learns what a bucket adds to
its score (Raffel et al. 2020, arXiv:1910.10683, §2.1).

Near distances have a bucket each, farther ones share buckets that widen by the same factor up to 128 tokens, and all beyond are
in the last one. A stack that looks both ways gives half of its buckets to keys that follow. As in the paper every head has
biases of its own and all layers of a stack share them: one small table tells the order, so no layer need learn it again.
Cross-attention has no bias: source and target are not counted together.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from xformer.positions.kind import PositionKind, Sizes, each_head

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from xformer.positions.kind import Bias, Positions, Tables

N_BUCKETS = 32
FURTHEST = 128
"""From this distance on all keys are in one bucket."""


def bucket(offset: Int[Tensor, "*batch query key"], *, causal: bool) -> Int[Tensor, "*batch query key"]:
    """The bucket of each offset = key − query; where looking ahead is forbidden, all keys that follow are in bucket 0."""
    import torch

    n = N_BUCKETS if causal else N_BUCKETS // 2
    starts = torch.tensor(_starts(n), device=offset.device)
    distance = (-offset).clamp(min=0) if causal else offset.abs()
    found = torch.bucketize(distance, starts, right=True)
    return found if causal else found + n * (offset > 0)


@cache
def _starts(n: int) -> tuple[int, ...]:
    """The least distance of each of n buckets but the first: 1 … m for m = n/2, then m · (128 / m)^(j / m), rounded up.

    In whole numbers, so that no logarithm decides by its rounding on which side of an edge a distance falls.
    """
    near = n // 2
    wide = n - near
    widening = [
        next(d for d in range(near, FURTHEST + 1) if d**wide >= near ** (wide - j) * FURTHEST**j)
        for j in range(1, wide)
    ]
    return (*range(1, near + 1), *widening)


class T5(PositionKind):
    """A learned bias for each bucket and head."""

    name = "t5"
    title = "T5’s bias"
    does = "Adds a learned number to each score, by head and by how far away the key is."
    more = (
        "Near distances have a number each, farther ones share one with their neighbours, and all layers use the same "
        "table. A range of distances that training never showed has learned nothing. (Raffel et al. 2020, §2.1)"
    )
    acts_on = "scores"
    detail = "T5’s bias, learned"
    equation = "score + Bₕ[bucket(distance)]"
    instead = "T5’s bias is added to the scores instead"

    def learned(self, sizes: Sizes) -> dict[str, tuple[int, int]]:
        return {"table": (N_BUCKETS, sizes.n_heads)}

    def bias(self, sizes: Sizes, tables: Tables, queries: Positions, keys: Positions, *, causal: bool) -> Bias:
        from torch.nn.functional import embedding

        offset = keys[..., None, :] - queries[..., :, None]  # [*batch, query, key]
        bias = embedding(bucket(offset, causal=causal), tables["table"]).movedim(-1, -3)  # [*batch, head, query, key]
        return bias if bias.dim() == 4 else bias[None]

    def explained(self, sizes: Sizes) -> str:
        return f"Adds a learned number to each score: one for every head and each of {N_BUCKETS} ranges of distance."

    def offset_caption(self, sizes: Sizes) -> str:
        return (
            f"What {each_head(sizes)} has learned to add to a score by how far the key is away: the "
            f"further, the more distances share one number, and from {FURTHEST} on all do."
        )
