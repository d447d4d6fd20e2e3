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

from xformer.analysis.attention_patterns import token_names
from xformer.errors import EditError, UnavailableError
from xformer.reading import Reading


@dataclass(frozen=True, eq=False)
class AttentionCell:
    """The numbers of one (query, key) cell, all taken from a trace."""

    q: Float[Tensor, " d_head"]
    k: Float[Tensor, " d_head"]
    v: Float[Tensor, " d_value"]
    bias: float
    """What ALiBi adds to the score; 0 without it."""
    score: float
    """q · k / √d_head + bias, or what else the layer makes of it before the mask."""
    allowed: Bool[Tensor, " key"]
    scores: Float[Tensor, " key"]
    """The query's masked scores: −inf where not allowed."""
    pattern: Float[Tensor, " key"]
    z: Float[Tensor, " d_value"]
    values: Float[Tensor, "key d_value"]
    tokens: tuple[str, ...]
    """What stands at the keys."""
    shared_by: tuple[int, ...] = ()
    """The heads, itself included, that read the very same keys and values as this one."""

    @property
    def d_head(self) -> int:
        return len(self.q)

    @property
    def dot(self) -> float:
        """q · k, before it is scaled."""
        return (self.q.double() @ self.k.double()).item()


def attention_cell(reading: Reading, *, layer: int, head: int, query: int, key: int) -> AttentionCell:
    """The numbers of one cell; `layer` counts the attention layers in their order, from 0, as head, query and key do.

    Raises `EditError` when the layer, head or cell is not in the trace.
    """
    site = reading.attention_site(layer)
    at = site.path
    pattern = reading[f"{at}.pattern"][0]  # [head, query, key]
    for name, value, size in zip(("head", "query", "key"), (head, query, key), pattern.shape, strict=True):
        if not 0 <= value < size:
            raise EditError(f"{at} has {name} 0 to {size - 1}, got {value}.")
    q, k, values = (reading[f"{at}.{name}"][0, head] for name in ("q", "k", "v"))
    bias = reading[f"{at}.pos_bias"][0, head, query, key].item() if f"{at}.pos_bias" in reading else 0.0
    dot = (q[query].double() @ k[key].double()).item()
    score, seen = dot / math.sqrt(q.shape[-1]) + bias, reading[f"{at}.scores"][0, head, query, key].item()
    keys, of_all = reading[f"{at}.k"][0], reading[f"{at}.v"][0]
    return AttentionCell(
        q=q[query],
        k=k[key],
        v=values[key],
        bias=bias,
        score=seen if math.isfinite(seen) and abs(seen - score) > 1e-3 * max(1.0, abs(score)) else score,
        allowed=reading[f"{at}.mask"][0, head, query],
        scores=reading[f"{at}.scores"][0, head, query],
        pattern=pattern[head, query],
        z=reading[f"{at}.z"][0, head, query],
        values=values,
        tokens=token_names(reading, site, pattern.shape)[1],
        shared_by=tuple(
            one for one in range(len(keys)) if keys[one].equal(keys[head]) and of_all[one].equal(of_all[head])
        ),
    )


def head_output(reading: Reading, *, layer: int, head: int, query: int) -> Float[Tensor, " d_model"]:
    """What a head adds to the residual stream at a position: z W_O (the output bias belongs to no head)."""
    path = reading.attention_site(layer).path
    z, to_stream = reading[f"{path}.z"][0, head, query], reading.subject.weights.projection(path)
    if to_stream.norm is not None:
        raise UnavailableError(
            "A norm stands between the heads and the stream here, so no head adds anything by itself."
        )
    rows = to_stream.weight[head * len(z) : (head + 1) * len(z)]  # [d_value, d_model]
    return to_stream.factor * (z @ rows.detach().to(z.dtype))


def attention_steps(reading: Reading, *, layer: int, head: int, query: int, key: int) -> pd.DataFrame:
    """One row per key: its token and score, whether the mask allows it, exp(score − largest), and its share of their sum."""
    return softmax_row(attention_cell(reading, layer=layer, head=head, query=query, key=key))


def dimensions(cell: AttentionCell) -> pd.DataFrame:
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


def softmax_row(cell: AttentionCell) -> pd.DataFrame:
    """One row per key: its token and score, whether the mask allows it, exp(score − largest), and its share of their sum."""
    largest = cell.scores[cell.allowed].max() if bool(cell.allowed.any()) else torch.tensor(0.0)
    raised = torch.where(cell.allowed, (cell.scores - largest).exp(), 0.0)  # [key]
    return pd.DataFrame(
        {
            "key": range(len(cell.scores)),
            "token": cell.tokens,
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
