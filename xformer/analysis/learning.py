"""When in a training run something first held: for watching it learn.

head_table(scores)                   one row per step and head: the score, how much a head does of what the task needs
first_passing(steps, values, 0.5)    the first step at which a curve is at or above a threshold
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

APPEARS = 0.5
"""A head has appeared when half of its attention is where the task needs it."""
LEARNED = 0.99
"""The share of exact matches from which on a run counts as having learned its task."""


def head_table(scores: Mapping[int, Mapping[str, Sequence[float]]]) -> pd.DataFrame:
    """Scores by step and layer as one row per step and head: step, layer, head (counted from 0), score."""
    rows = [
        {"step": step, "layer": path, "head": head, "score": score}
        for step in sorted(scores)
        for path, values in scores[step].items()
        for head, score in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["step", "layer", "head", "score"])


def best_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Of a `head_table`, the head that scores best at each step; of equals the first."""
    return table.loc[table.groupby("step")["score"].idxmax()].reset_index(drop=True)


def first_passing(steps: Iterable[int], values: Iterable[float], threshold: float) -> int | None:
    """The first step at which a curve is at or above a threshold; None where it never is."""
    return next((step for step, value in zip(steps, values, strict=True) if value >= threshold), None)


def appearance(best: pd.DataFrame) -> int | None:
    """The step of a `best_heads` frame at which a head appears: the first at or above `APPEARS`.

    None where no head is yet, and where one was from the beginning: then chance alone gives that much.
    """
    steps, scores = best["step"].tolist(), best["score"].tolist()
    return None if not scores or scores[0] >= APPEARS else first_passing(steps, scores, APPEARS)


def dip(
    steps: Sequence[int], values: Sequence[float], high: float = 0.95, depth: float = 0.03
) -> tuple[int, float] | None:
    """Where a curve that had been at `high` falls by `depth` or more below its best so far and comes back up to it.

    The step and the value of the lowest such point; None where there is none.
    """
    curve = np.asarray(values, dtype=float)
    if len(curve) == 0:
        return None
    before = np.maximum.accumulate(curve)  # the best so far
    after = np.maximum.accumulate(curve[::-1])[::-1]  # the best from here on
    fallen = (before >= high) & (before - curve >= depth) & (after >= before)
    if not fallen.any():
        return None
    lowest = int(np.where(fallen, curve, np.inf).argmin())
    return steps[lowest], float(curve[lowest])


def thinned(steps: Sequence[int], most: int) -> list[int]:
    """At most about `most` of the steps, evenly spread, the last among them.

    Every 2^k-th is kept, so that a run which grows keeps what has been computed.
    """
    stride = 1
    while len(steps) > stride * most:
        stride *= 2
    kept = list(steps[::stride])
    return kept if not steps or kept[-1] == steps[-1] else [*kept, steps[-1]]
