"""Why a head looks at a token: the score of one cell, split by who wrote what the query and the key are made of.

    score(i, j)  =  Σ over writers a, b   q_a(i) · k_b(j) · scale        q_a, k_b: what the head reads of the parts a, b

The score is bilinear in what the stream holds at the query and at the key, once the norm before the layer is frozen at this
run's value; so the sum is exact. Softmax cares about differences alone: what explains a *choice* is the advantage of a key, its
score less what another key has, or the mean of all others that the query may look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.stream_parts import StreamParts, Writer, stream_parts
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading
from xformer.site import Site
from xformer.subjects.frozen_norm import FrozenNorm

CLOSE = 1e-3
"""How far a sum may be from what was recorded, as a share of the largest number: more is no rounding."""
DISTANCE = Writer("distance", "positions")
"""Who adds a bias by the distance of query and key to the scores, whatever stands there."""


@dataclass(frozen=True, eq=False)
class ScoreParts:
    """One cell's score part by part."""

    query_writers: tuple[Writer, ...]
    key_writers: tuple[Writer, ...]
    score: Float[Tensor, "query_writer key_writer"]
    advantage: Float[Tensor, "query_writer key_writer"]
    total: float
    """The score itself, from the run."""
    total_advantage: float
    reads: dict[str, Float[Tensor, "writer pos d_head"]]
    """What the head reads of each writer at all positions, by the side: "query" and "key"."""

    @property
    def has_distance(self) -> bool:
        """Whether the model adds a bias by distance to its scores."""
        return bool(self.score[-1, -1] != 0 or self.advantage[-1, -1] != 0)

    @property
    def residue(self) -> float:
        """What the sum misses of the score: rounding."""
        return self.total - float(self.score.sum())


def why(reading: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None) -> pd.DataFrame:
    """Each pair of writers with what it adds to the score of (query, key), and to that key's advantage over `against`.

    `layer` counts the attention layers from 0, as `head`, `query` and `key` do; `against` is another key, or None for the mean
    of all others that the query may look at. Columns: query_source, key_source, query_layer, query_head, key_layer, key_head
    (−1 where there is none), score, advantage, the largest advantage first. They sum to the score and to the whole advantage.

    Raises `UnavailableError` where the parts are out of reach, `InputError` for a cell that is masked or not there.
    """
    return table_of(score_parts(reading, layer=layer, head=head, query=query, key=key, against=against))


def table_of(parts: ScoreParts) -> pd.DataFrame:
    """See `why`."""
    n = len(parts.query_writers) - 1, len(parts.key_writers) - 1  # without the distance, which has no part but its own
    i, j = (index.ravel() for index in np.indices(n))
    if parts.has_distance:
        i, j = np.append(i, n[0]), np.append(j, n[1])
    of_query, of_key = _columns("query", parts.query_writers, i), _columns("key", parts.key_writers, j)
    table = pd.DataFrame(
        {
            "query_source": of_query.pop("query_source"),
            "key_source": of_key.pop("key_source"),
            **of_query,
            **of_key,
            "score": parts.score.numpy(force=True)[i, j],
            "advantage": parts.advantage.numpy(force=True)[i, j],
        }
    )
    return table.sort_values("advantage", ascending=False, key=abs, ignore_index=True)


def score_parts(
    reading: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None
) -> ScoreParts:
    """The same as matrices."""
    site = reading.attention_site(layer)
    scores = reading[f"{site.path}.scores"][0]  # [head, query, key]
    _check_cell(scores, head, query, key, against)
    row = scores[head, query].double()  # [key]
    others = torch.isfinite(row)
    others[key] = False
    compared = others.nonzero()[:, 0] if against is None else torch.tensor([against])
    q_parts, k_parts = sides(reading, site)
    reads = {
        "query": read_by_head(reading, site, q_parts, "q", head),  # [part, pos, d_head]
        "key": read_by_head(reading, site, k_parts, "k", head),
    }
    q, k = reads["query"][:, query], reads["key"]
    bias = _distance(reading, site, head, query)  # [key]
    raw = q.sum(dim=0) @ k.sum(dim=0).T  # [key]
    factor = _factor(row - bias, raw)
    others = (k[:, compared] * factor[compared, None]).sum(dim=1) / max(1, len(compared))  # [key writer, d_head]
    score, mean = q @ k[:, key].T * factor[key], q @ others.T  # [query writer, key writer]
    score, mean = (torch.nn.functional.pad(part, (0, 1, 0, 1)) for part in (score, mean))
    score[-1, -1], mean[-1, -1] = bias[key], bias[compared].sum() / max(1, len(compared))
    return ScoreParts(
        (*q_parts.writers, DISTANCE), (*k_parts.writers, DISTANCE), score, score - mean, float(row[key]),
        float(row[key] - (row[compared].mean() if len(compared) else 0.0)), reads,
    )  # fmt: skip


def sides(reading: Reading, site: Site) -> tuple[StreamParts, StreamParts]:
    """What the queries and what the keys of a layer are made of, behind the norm that stands before it."""
    queries = stream_parts(reading, site.stack, site)
    norm = reading.subject.weights.norm_before(site.path)
    if norm is not None:
        queries = queries.through(FrozenNorm.at(norm, queries.total()))
    if not site.is_cross:
        return queries, queries
    keys = stream_parts(reading, site.key_stack)
    last = reading.subject.weights.last_norm(site.key_stack)
    return queries, keys if last is None else keys.through(FrozenNorm.at(last, keys.total()))


def read_by_head(
    reading: Reading, site: Site, parts: StreamParts, side: Literal["q", "k"], head: int
) -> Float[Tensor, "part pos d_head"]:
    """What a head reads of each part; what it adds itself, whatever it reads, goes to the biases."""
    matrix, bias = _affine(reading, site, parts.vectors.shape[1:], side, head)
    wanted = reading[f"{site.path}.{side}"][0, head].double()  # [pos, d_head]
    own = torch.einsum("apm,pcm->apc", parts.vectors, matrix.to(parts.vectors.dtype)).double()
    own[parts.biases] += bias
    if not float((own.sum(dim=0) - wanted).abs().max()) <= CLOSE * float(wanted.abs().max()):
        raise UnavailableError(
            f"The parts of {site.path}.{side} do not sum to it: something was changed on the way, or this model normalises its "
            "queries and keys, so that a score is no sum of parts."
        )
    return own


def _affine(
    reading: Reading, site: Site, shape: torch.Size, side: Literal["q", "k"], head: int
) -> tuple[Float[Tensor, "pos d_head d_model"], Float[Tensor, "pos d_head"]]:
    """How a head's queries or keys follow from the stream at each position: a matrix, rotated where positions rotate, and what
    is there without any stream. A gradient for each of its numbers costs less than asking the layer about every part."""
    zero = torch.zeros(1, *shape, requires_grad=True)
    read = reading.subject.heads_read(reading.example, reading.trace, site.path, zero, side)[0, head]  # [pos, d_head]
    each = torch.eye(read.shape[1])[:, None].expand(-1, *read.shape)  # [d_head, pos, d_head]
    [rows] = torch.autograd.grad(read, zero, each, is_grads_batched=True)  # [d_head, 1, pos, d_model]
    return rows[:, 0].transpose(0, 1), read.detach()


def _distance(reading: Reading, site: Site, head: int, query: int) -> Float[Tensor, " key"]:
    """The bias that a position kind adds to the scores."""
    name = f"{site.path}.pos_bias"
    if name not in reading:
        return torch.zeros(reading[f"{site.path}.scores"].shape[-1], dtype=torch.float64)
    bias = reading[name]
    return bias[0, min(head, bias.shape[1] - 1), min(query, bias.shape[2] - 1)].double()


def _factor(scores: Float[Tensor, " key"], raw: Float[Tensor, " key"]) -> Float[Tensor, " key"]:
    """What the product of query and key is multiplied with: a constant; under a soft cap, what it comes to in each cell."""
    seen = torch.isfinite(scores)
    strongest = int(torch.where(seen, raw.abs(), -1.0).argmax())
    constant = scores[strongest] / raw[strongest]
    if torch.allclose(raw[seen] * constant, scores[seen], rtol=1e-3, atol=1e-4 * float(scores[seen].abs().max())):
        return torch.full_like(raw, float(constant))
    return torch.where(raw.abs() > 1e-9, scores / raw, constant)


def _check_cell(scores: Tensor, head: int, query: int, key: int, against: int | None) -> None:
    n_heads, n_query, n_key = scores.shape
    if not (0 <= head < n_heads and 0 <= query < n_query and 0 <= key < n_key):
        raise InputError(
            f"This layer has heads 0 to {n_heads - 1}, queries 0 to {n_query - 1} and keys 0 to {n_key - 1}, got head {head}, "
            f"query {query}, key {key}."
        )
    for cell in (key, against):
        if cell is not None and not torch.isfinite(scores[head, query, cell]):
            raise InputError(
                f"Query {query} may not look at key {cell}, so there is no score to explain; try its own place."
            )


def _columns(side: str, writers: Sequence[Writer], index: np.ndarray) -> dict[str, np.ndarray]:
    """Name, layer and head of the writers that the rows of the table are about."""
    names = np.array([writer.name for writer in writers], dtype=object)
    layers = np.array([-1 if writer.site is None else writer.site.layer for writer in writers])
    heads = np.array([-1 if writer.head is None else writer.head for writer in writers])
    return {f"{side}_source": names[index], f"{side}_layer": layers[index], f"{side}_head": heads[index]}
