"""T5's relative bias: distances fall into 32 buckets, and each head learns one score bias per bucket.

Small distances have a bucket each, larger ones share buckets that widen by a constant factor up to 128 tokens, and all beyond
are in the last bucket. A bidirectional stack uses half of the buckets for later keys. As in the paper, each head has its own
biases, and all layers of a stack share them. Cross-attention has no bias, because source and target have no common positions.

Source: Raffel et al. 2020, arXiv:1910.10683, §2.1.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from xformer.positions.kind import PositionKind, PositionSizes, each_head

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from xformer.positions.kind import Bias, Positions, Tables

N_BUCKETS = 32
FURTHEST = 128
"""Distance from which all keys are in one bucket."""


def bucket(offset: Int[Tensor, "*batch query key"], *, causal: bool) -> Int[Tensor, "*batch query key"]:
    """Return the bucket of each offset = key − query; with `causal`, all later keys are in bucket 0."""
    import torch

    n = N_BUCKETS if causal else N_BUCKETS // 2
    starts = torch.tensor(_starts(n), device=offset.device)
    distance = (-offset).clamp(min=0) if causal else offset.abs()
    found = torch.bucketize(distance, starts, right=True)
    return found if causal else found + n * (offset > 0)


@cache
def _starts(n: int) -> tuple[int, ...]:
    """Return the smallest distance of each bucket except the first: 1 … m for m = n/2, then ⌈m · (128 / m)^(j / m)⌉.

    Computed in integers, so that bucket edges do not depend on the rounding of a logarithm.
    """
    near = n // 2
    wide = n - near
    widening = [
        next(d for d in range(near, FURTHEST + 1) if d**wide >= near ** (wide - j) * FURTHEST**j)
        for j in range(1, wide)
    ]
    return (*range(1, near + 1), *widening)


class T5(PositionKind):
    """One learned bias per bucket and head."""

    name = "t5"
    title = "T5’s bias"
    summary = "Adds a learned number to each score, by head and distance of the key."
    note = (
        "Small distances have a number each, larger ones share numbers, and all layers use the same table. Distances that "
        "never occur in training learn nothing."
    )
    source = "Raffel et al. 2020, §2.1"
    acts_on = "scores"
    detail = "T5’s bias, learned"
    equation = "score + Bₕ[bucket(distance)]"
    alternative = "T5’s bias is added to the scores instead"

    def learned(self, sizes: PositionSizes) -> dict[str, tuple[int, int]]:
        return {"table": (N_BUCKETS, sizes.n_heads)}

    def bias(self, sizes: PositionSizes, tables: Tables, queries: Positions, keys: Positions, *, causal: bool) -> Bias:
        from torch.nn.functional import embedding

        offset = keys[..., None, :] - queries[..., :, None]  # [*batch, query, key]
        bias = embedding(bucket(offset, causal=causal), tables["table"]).movedim(-1, -3)  # [*batch, head, query, key]
        return bias if bias.dim() == 4 else bias[None]

    def explanation(self, sizes: PositionSizes) -> str:
        return f"Adds a learned number to each score: one for every head and each of {N_BUCKETS} ranges of distance."

    def offset_caption(self, sizes: PositionSizes) -> str:
        return (
            f"What {each_head(sizes)} has learned to add to a score, by the distance of the key: the "
            f"larger, the more distances share one number, and from {FURTHEST} on all do."
        )
