"""What the parts of a score come to: who carries how much of a choice, and what becomes of it when that one is taken away.

The shares are arithmetic; `without_source` is the measurement beside it. It takes what one writer wrote out of the queries, or
out of the keys, of this one head, and leaves everything else as it was (path patching, Wang et al. 2022, arXiv:2211.00593).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from xformer import edits
from xformer.analysis.score_parts import ScoreParts, read_by_head, sides
from xformer.analysis.stream_parts import Writer
from xformer.errors import InputError
from xformer.reading import Reading, rerun

MOST = 0.5
"""Of a choice one source has to carry that share before it is said to explain it."""
Side = Literal["query", "key"]


@dataclass(frozen=True)
class Carrier:
    """A writer, and how much of a key's advantage comes through it at the query or at the key."""

    side: Side
    writer: Writer
    advantage: float
    share: float


def carriers(parts: ScoreParts) -> list[Carrier]:
    """Each writer on each side with its part of the advantage, the largest first. On either side they sum to the whole."""
    total = float(parts.advantage.sum())
    found = []
    for side, writers, dim in (("query", parts.query_writers, 1), ("key", parts.key_writers, 0)):
        for writer, advantage in zip(writers, parts.advantage.sum(dim=dim).tolist(), strict=True):
            share = advantage / total if total else 0.0
            found.append(Carrier("query" if side == "query" else "key", writer, advantage, share))
    return sorted(found, key=lambda one: -abs(one.advantage))


def explains(parts: ScoreParts) -> Carrier | None:
    """The one writer that carries most of why a key is preferred; None where no single one does, or nothing is preferred."""
    if float(parts.advantage.sum()) <= 0:
        return None
    best = max(carriers(parts), key=lambda one: one.advantage)
    return best if best.share >= MOST else None


def without_source(
    reading: Reading, *, layer: int, head: int, side: Side, source: str, parts: ScoreParts | None = None
) -> Reading:
    """The same run with what `source` wrote taken out of one head's queries, or of its keys, at all positions.

    `parts` are those of any cell of that head where they are known.

    Raises `InputError` where nobody of that name wrote into the stream before that layer.
    """
    site = reading.attention_site(layer)
    short: Literal["q", "k"] = "q" if side == "query" else "k"
    if parts is None:
        written = sides(reading, site)[0 if side == "query" else 1]
        writers, reads = written.writers, read_by_head(reading, site, written, short, head)
    else:
        writers, reads = (parts.query_writers if side == "query" else parts.key_writers)[:-1], parts.reads[side]
    names = [writer.name for writer in writers]
    if source not in names:
        raise InputError(f"Nobody called {source!r} wrote what this layer reads; it was {', '.join(names)}.")
    read = reads[names.index(source)]  # [pos, d_head]
    name = f"{site.path}.{short}"
    left = reading[name].clone()
    left[0, head] -= read.to(left.dtype)
    return rerun(reading, [edits.replace(name, left, heads=[head])])


def check(reading: Reading, changed: Reading, *, layer: int, head: int, query: int, key: int) -> pd.DataFrame:
    """What became of a cell and of the predictions: rows weight, score, loss; columns before, after."""
    path = reading.attention_site(layer).path
    rows = [
        {"what": what, "before": float(reading[f"{path}.{name}"][0, head, query, key]),
         "after": float(changed[f"{path}.{name}"][0, head, query, key])}
        for what, name in (("weight on this key", "pattern"), ("score of this key", "scores"))
    ]  # fmt: skip
    return pd.DataFrame([*rows, {"what": "loss", "before": reading.loss, "after": changed.loss}])
