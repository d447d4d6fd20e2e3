"""Predict, then switch: which query is asked about, the visitor's guess, and what happened without positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from xformer import analysis
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import head_title

LEAST_MOVED = 0.01
"""Less attention than this is not said to have moved."""


@dataclass(frozen=True)
class Guess:
    """Where the visitor expects a query to look without positions."""

    of: tuple[Any, ...]
    """The model, its input, and the layer and head."""
    query: str
    key: str


def question(on: Reading, off: Reading, layer: int, head: int) -> tuple[int, str]:
    """The query whose attention moves most in a head, and its name; "" where none moves."""
    path = on.attention[layer].path
    before, after = (run[f"{path}.pattern"][0, head].double() for run in (on, off))
    if before.shape != after.shape:
        return 0, ""
    moved = (after - before).abs().sum(dim=-1) / 2  # [query]
    query = int(moved.argmax())
    names = list(dict.fromkeys(analysis.attention(on, layer=layer, head=head)["query"]))
    return query, names[query] if moved[query] > LEAST_MOVED else ""


def what_happened(on: Reading, off: Reading, moved: pd.DataFrame, layer: int, head: int, is_pair: bool) -> str:
    """How much of a head's attention moved, and how many of several answers are right; "" where nothing moved."""
    path = on.attention[layer].path
    [share] = moved.loc[(moved["layer"] == path) & (moved["head"] == head), "moved"].tolist()
    if share < LEAST_MOVED:
        return ""
    name = head_title(path, head, is_pair=is_pair)
    sentence = f"**{percent(share, 0)}** of {name}’s attention moves"
    n = len(on.target_positions)
    if n > 1 and on.has_right_answer and on.n_correct != off.n_correct:
        return f"{sentence}, and **{off.n_correct}** of {n} answers are right instead of {on.n_correct}."
    return f"{sentence}."
