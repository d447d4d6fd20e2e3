"""Training runs as tables: scores of heads by step, when a curve passes a threshold, the spread of many runs, and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

APPEARS = 0.5
"""A head has appeared when half of its attention is where the task needs it."""
GAIN = 0.25
"""The least gain of a score that is called an appearance."""
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


@dataclass(frozen=True)
class Emerged:
    """The step at which a head appeared, the head that is best at the last step, and its first and last score."""

    step: int
    layer: str
    head: int
    first: float
    last: float


def emerged(table: pd.DataFrame) -> Emerged | None:
    """What appeared in a `head_table` (see `appearance`) and is still there.

    None as well where the head that is best now gained less than `GAIN`: on few tokens, chance gives as much.
    """
    best = best_heads(table)
    if (step := appearance(best)) is None:
        return None
    layer, head, last = (best[name].tolist()[-1] for name in ("layer", "head", "score"))
    first = table.loc[(table["layer"] == layer) & (table["head"] == head), "score"].tolist()[0]
    return Emerged(step, layer, head, first, last) if last >= APPEARS and last - first >= GAIN else None


def settled(steps: Sequence[float], values: Sequence[float], threshold: float) -> float | None:
    """The step from which on a curve stays at or above a threshold; None where it does not for two reports at the end."""
    below = max((i for i, value in enumerate(values) if value < threshold), default=-1)
    return steps[below + 1] if below + 2 < len(values) else None


HIGH, DEPTH = 0.95, 0.03


def dip(steps: Sequence[int], values: Sequence[float]) -> tuple[int, float] | None:
    """Where a curve that had been at `HIGH` falls by `DEPTH` or more below its best so far and comes back up to it.

    The step and the value of the lowest such point; None where there is none.
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
    """At most about `most` of the steps, evenly spread, the last among them.

    Every 2^k-th is kept, so that a run which grows keeps what has been computed.
    """
    stride = 1
    while len(steps) > stride * most:
        stride *= 2
    kept = list(steps[::stride])
    return kept if not steps or kept[-1] == steps[-1] else [*kept, steps[-1]]


QUANTILES = {"low": 0.1, "lower": 0.25, "median": 0.5, "upper": 0.75, "high": 0.9}


def curves_of_all(rows: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """A row a step, a column a member, from `rows` of [member, step, the metrics …]: what each last reported until then.

    So a member that has finished keeps its last value, and one that has not reported yet is not a number.
    """
    known = rows[["member", "step", metric]].dropna()
    wide = known.pivot_table(index="step", columns="member", values=metric, aggfunc="last")
    return wide.sort_index().ffill()


def training_fan(rows: pd.DataFrame, *, metric: str = "held_out_exact_match") -> pd.DataFrame:
    """A row a step: the quantiles `QUANTILES` of a metric over all members that have reported it, and how many these are.

    `rows` has the columns member, step and the metrics. A member that has finished counts with its last value.

    Args:
        rows: One row for each report: member, step and its figures.
        metric: The column of `rows`.

    Returns:
        A table; the example shows its columns.

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
    """`training_fan` of curves that stand side by side, see `curves_of_all`."""
    table = wide.T.quantile([*QUANTILES.values()]).T.set_axis([*QUANTILES], axis=1)
    return table.assign(members=wide.notna().sum(axis=1)).rename_axis("step").reset_index()


def sweep_outcome(outcomes: pd.DataFrame, *, x: str, y: str | None = None) -> pd.DataFrame:
    """Summarise a sweep: one row for each setting of `x` (and `y`) that was tried.

    `outcomes` has a row a member with the columns of the settings, solved (True, False, or missing while it is being trained)
    and steps_to_solve. In the table members is how many there are, decided how many of them have finished, solved how many of
    these solved the task, share_solved the share of the decided (NaN where there are none), steps_to_solve the median of those
    that solved it.

    Args:
        outcomes: One row for each member: its settings, solved and steps_to_solve.
        x: The setting along x.
        y: The setting along y.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> import pandas as pd
        >>> outcomes = pd.DataFrame({"rate": [0.001, 0.003], "solved": [True, False], "steps_to_solve": [80, None]})
        >>> table = xformer.analysis.sweep_outcome(outcomes, x="rate")
        >>> list(table.columns)
        ['rate', 'members', 'decided', 'solved', 'share_solved', 'steps_to_solve']
    """
    axes = [x] if y is None else [x, y]
    solved, steps = outcomes["solved"].eq(True), outcomes["steps_to_solve"].astype(float)
    counted = outcomes[axes].assign(
        members=1, decided=solved | outcomes["solved"].eq(False), solved=solved, steps_to_solve=steps.where(solved)
    )
    how = {"members": "sum", "decided": "sum", "solved": "sum", "steps_to_solve": "median"}
    table = counted.groupby(axes, as_index=False, dropna=False).agg(how)
    table.insert(len(axes) + 3, "share_solved", table["solved"] / table["decided"].where(table["decided"] > 0))
    return table
