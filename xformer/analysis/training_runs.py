"""Training runs as tables: head scores by step, when a curve passes a threshold, the spread of many runs, and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from xformer.formatting import check_option

APPEARS = 0.5
"""A head has appeared when half of its attention is where the task requires it."""
GAIN = 0.25
"""The smallest increase of a score that is reported as an appearance."""
LEARNED = 0.99
"""The share of exact matches from which a run counts as having learned its task."""


def head_table(scores: Mapping[int, Mapping[str, Sequence[float]]]) -> pd.DataFrame:
    """Tabulate scores by step and layer, a row per step and head: step, layer, head (from 0), score."""
    rows = [
        (step, path, head, score)
        for step in sorted(scores)
        for path, values in scores[step].items()
        for head, score in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["step", "layer", "head", "score"])


def best_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best head of a `head_table` at each step; the first one in case of a tie."""
    return table.loc[table.groupby("step")["score"].idxmax()].reset_index(drop=True)


def first_passing(steps: Iterable[int], values: Iterable[float], threshold: float) -> int | None:
    """Return the first step at which a curve reaches a threshold; None if it never does."""
    return next((step for step, value in zip(steps, values, strict=True) if value >= threshold), None)


def appearance(best: pd.DataFrame) -> int | None:
    """Return the step of a `best_heads` frame at which a head appears: the first at or above `APPEARS`.

    None if no head has appeared yet, and if one was there from the start, where it scores that much by chance.
    """
    steps, scores = best["step"].tolist(), best["score"].tolist()
    return None if not scores or scores[0] >= APPEARS else first_passing(steps, scores, APPEARS)


@dataclass(frozen=True)
class Emerged:
    """The step at which a head appeared, the head that is best at the last step, and its first and last scores."""

    step: int
    layer: str
    head: int
    first: float
    last: float


def emerged(table: pd.DataFrame) -> Emerged | None:
    """Return the head of a `head_table` that appeared (see `appearance`) and is still there.

    None also if the head that is best at the end gained less than `GAIN`, which on few tokens happens by chance.
    """
    best = best_heads(table)
    if (step := appearance(best)) is None:
        return None
    layer, head, last = (best[name].tolist()[-1] for name in ("layer", "head", "score"))
    first = table.loc[(table["layer"] == layer) & (table["head"] == head), "score"].tolist()[0]
    return Emerged(step, layer, head, first, last) if last >= APPEARS and last - first >= GAIN else None


def settled(steps: Sequence[float], values: Sequence[float], threshold: float) -> float | None:
    """Return the step from which a curve stays at or above a threshold; None if that is not so for the last two reports."""
    below = max((i for i, value in enumerate(values) if value < threshold), default=-1)
    return steps[below + 1] if below + 2 < len(values) else None


HIGH, DEPTH = 0.95, 0.03


def dip(steps: Sequence[int], values: Sequence[float]) -> tuple[int, float] | None:
    """Find where a curve that had reached `HIGH` falls by at least `DEPTH` below its best value so far, and later recovers.

    Returns the step and value of the lowest such point; None if there is none.
    """
    curve = np.asarray(values, dtype=float)
    if len(curve) == 0:
        return None
    before = np.maximum.accumulate(curve)  # the best so far
    after = np.maximum.accumulate(curve[::-1])[::-1]  # the best from here on
    fallen = (before >= HIGH) & (before - curve >= DEPTH) & (after >= before)
    if not fallen.any():
        return None
    lowest = int(np.where(fallen, curve, np.inf).argmin())
    return steps[lowest], float(curve[lowest])


def thinned(steps: Sequence[int], most: int) -> list[int]:
    """Return at most about `most` of the steps, evenly spaced and including the last one.

    Every 2^k-th step is kept, so that as a run grows, results for kept steps can be reused.
    """
    stride = 1
    while len(steps) > stride * most:
        stride *= 2
    kept = list(steps[::stride])
    return kept if not steps or kept[-1] == steps[-1] else [*kept, steps[-1]]


QUANTILES = {"low": 0.1, "lower": 0.25, "median": 0.5, "upper": 0.75, "high": 0.9}


def curves_of_all(rows: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return a row per step and a column per member from `rows` of [member, step, metrics …], each with its latest value.

    A member that has finished keeps its last value; one that has not reported yet is NaN.
    """
    check_option("metric", metric, rows.columns)
    known = rows[["member", "step", metric]].dropna()
    return known.pivot_table(index="step", columns="member", values=metric, aggfunc="last").sort_index().ffill()


def training_fan(rows: pd.DataFrame, *, metric: str = "held_out_exact_match") -> pd.DataFrame:
    """Summarise a metric over many training runs by quantiles, a row per step.

    Args:
        rows: A row per report, with the columns member (the run), step and the metrics.
        metric: The column of `rows` to summarise.

    Returns:
        A row per step: step, low, lower, median, upper and high (the quantiles 0.1, 0.25, 0.5, 0.75 and 0.9 over the members),
        and members (how many have reported so far). A member that has finished counts with its last value.

    Example:
        >>> import xformer
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"member": [0, 1], "step": [20, 20], "held_out_exact_match": [0.5, 0.25]})
        >>> table = xformer.analysis.training_fan(rows)
        >>> list(table.columns)
        ['step', 'low', 'lower', 'median', 'upper', 'high', 'members']
    """
    return quantiles(curves_of_all(rows, metric=metric))


def quantiles(wide: pd.DataFrame) -> pd.DataFrame:
    """Compute `training_fan` from curves side by side, see `curves_of_all`."""
    table = wide.T.quantile([*QUANTILES.values()]).T.set_axis([*QUANTILES], axis=1)
    return table.assign(members=wide.notna().sum(axis=1)).rename_axis("step").reset_index()


def sweep_outcome(outcomes: pd.DataFrame, *, x: str, y: str | None = None) -> pd.DataFrame:
    """Summarise a sweep, a row per setting of `x` (and `y`).

    Args:
        outcomes: A row per member, with its settings, solved (True, False, or missing while it is training) and
            steps_to_solve.
        x: The column of the first setting.
        y: The column of the second setting, if any.

    Returns:
        A row per setting: the settings, members (their number), decided (how many have finished), solved (how many solved the
        task), share_solved (of the decided ones; NaN if there are none) and steps_to_solve (median of those that solved it).

    Example:
        >>> import xformer
        >>> import pandas as pd
        >>> outcomes = pd.DataFrame({"rate": [0.001, 0.003], "solved": [True, False], "steps_to_solve": [80, None]})
        >>> table = xformer.analysis.sweep_outcome(outcomes, x="rate")
        >>> list(table.columns)
        ['rate', 'members', 'decided', 'solved', 'share_solved', 'steps_to_solve']
    """
    check_option("x", x, outcomes.columns)
    check_option("y", y, [None, *outcomes.columns])
    axes = [x] if y is None else [x, y]
    solved, steps = outcomes["solved"].eq(True), outcomes["steps_to_solve"].astype(float)
    decided = solved | outcomes["solved"].eq(False)
    counted = outcomes[axes].assign(members=1, decided=decided, solved=solved, steps_to_solve=steps.where(solved))
    how = {"members": "sum", "decided": "sum", "solved": "sum", "steps_to_solve": "median"}
    table = counted.groupby(axes, as_index=False, dropna=False).agg(how)
    table.insert(len(axes) + 3, "share_solved", table["solved"] / table["decided"].where(table["decided"] > 0))
    return table
