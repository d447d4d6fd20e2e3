"""One cell of one head, step by step: the actual numbers behind a single attention weight and what it moves.

q, k, v                      rows of the head's queries, keys and values           [d_head], [d_head], [d_value]
score  = q · k / √d_head     (+ the ALiBi bias where the model has one)
pattern = exp(score) / Σ exp over the keys that the mask allows
z      = Σ_key pattern · v                                                         [d_value]
out    = z W_O               what this head writes into the residual stream        [d_model]
                                                                    (Vaswani et al. 2017, §3.2.1, §3.2.2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.errors import EditError
from xformer.trace import Trace


@dataclass(frozen=True, eq=False)
class Stages:
    """The numbers of one (query, key) cell, all taken from a trace."""

    q: Float[Tensor, " d_head"]
    k: Float[Tensor, " d_head"]
    v: Float[Tensor, " d_value"]
    bias: float
    """What ALiBi adds to the score; 0 without it."""
    score: float
    """q · k / √d_head + bias, as the layer computed it before the mask."""
    allowed: Bool[Tensor, " key"]
    scores: Float[Tensor, " key"]
    """The query's masked scores: −inf where not allowed."""
    pattern: Float[Tensor, " key"]
    z: Float[Tensor, " d_value"]
    values: Float[Tensor, "key d_value"]

    @property
    def d_head(self) -> int:
        return len(self.q)

    @property
    def dot(self) -> float:
        """q · k, before it is scaled."""
        return (self.q.double() @ self.k.double()).item()


def stages(trace: Trace, attention: str, head: int, query: int, key: int, item: int = 0) -> Stages:
    """The stages of a cell, e.g. `stages(trace, "encoder.1.attn", 0, 2, 3)`.

    Raises `EditError` when the layer, head or cell is not in the trace.
    """
    pattern = trace[f"{attention}.pattern"][item]  # [head, query, key]
    for name, value, size in zip(("head", "query", "key"), (head, query, key), pattern.shape, strict=True):
        if not 0 <= value < size:
            raise EditError(f"{attention} has {name} 0 to {size - 1}, got {value}.")
    q, k = trace[f"{attention}.q"][item, head, query], trace[f"{attention}.k"][item, head, key]
    bias = 0.0
    if f"{attention}.pos_bias" in trace:
        biases = trace[f"{attention}.pos_bias"]
        bias = biases[min(item, len(biases) - 1), head, query, key].item()
    values = trace[f"{attention}.v"][item, head]
    return Stages(
        q=q,
        k=k,
        v=values[key],
        bias=bias,
        score=(q.double() @ k.double()).item() / math.sqrt(len(q)) + bias,
        allowed=trace[f"{attention}.mask"][item, head, query],
        scores=trace[f"{attention}.scores"][item, head, query],
        pattern=pattern[head, query],
        z=trace[f"{attention}.z"][item, head, query],
        values=values,
    )


def dimensions(cell: Stages) -> pd.DataFrame:
    """One row a dimension of the head: q, k and their product, whose sum over √d_head is the score."""
    product = cell.q * cell.k  # [d_head]
    return pd.DataFrame(
        {
            "dimension": range(cell.d_head),
            "q": cell.q.tolist(),
            "k": cell.k.tolist(),
            "product": product.tolist(),
        }
    )


def softmax_row(cell: Stages, labels: tuple[str, ...]) -> pd.DataFrame:
    """One row per key: its score, whether the mask allows it, exp(score − largest), and its share of their sum."""
    largest = cell.scores[cell.allowed].max() if bool(cell.allowed.any()) else torch.tensor(0.0)
    raised = torch.where(cell.allowed, (cell.scores - largest).exp(), 0.0)  # [key]
    return pd.DataFrame(
        {
            "key": range(len(cell.scores)),
            "token": labels,
            "allowed": cell.allowed.tolist(),
            "score": [score if math.isfinite(score) else None for score in cell.scores.tolist()],
            "exp": raised.tolist(),
            "weight": cell.pattern.tolist(),
        }
    )


def strongest(row: pd.DataFrame, most: int, key: int) -> pd.DataFrame:
    """The `most` keys of a softmax row with the largest weights, in their order, and the one that was asked for."""
    kept = row.nlargest(most, "weight").index.union([key])
    return row if len(row) <= most else row.loc[kept].reset_index(drop=True)


def written(z: Float[Tensor, " d_value"], w_o: Float[Tensor, "d_value d_model"]) -> Float[Tensor, " d_model"]:
    """What a head adds to the residual stream at a position: z W_O (the output bias belongs to no head)."""
    return z @ w_o
