"""What came of many models that were trained alike: how their curves spread, and which settings solved the task.

analysis.training_fan(rows, metric="loss")
analysis.sweep_outcome(outcomes, x="peak_lr", y="weight_decay")
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

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
    """
    return quantiles(curves_of_all(rows, metric=metric))


def quantiles(wide: pd.DataFrame) -> pd.DataFrame:
    """`training_fan` of curves that stand side by side, see `curves_of_all`."""
    values = wide.to_numpy(dtype=float)  # [step, member]
    table = pd.DataFrame({"step": wide.index.to_numpy(dtype=int)})
    for name, share in QUANTILES.items():
        table[name] = np.nanquantile(values, share, axis=1) if values.size else []
    table["members"] = np.isfinite(values).sum(axis=1) if values.size else []
    return table


def sweep_outcome(outcomes: pd.DataFrame, *, x: str, y: str | None = None) -> pd.DataFrame:
    """A row for each setting of `x` (and `y`) that was tried, from `outcomes`, a row a member with the columns of the settings,
    solved (True, False, or missing while it is being trained) and steps_to_solve.

    members is how many there are, decided how many of them have finished, solved how many of these solved the task,
    share_solved the share of the decided (not a number where there are none), steps_to_solve the median of those that solved
    it.
    """
    axes = [x] if y is None else [x, y]
    groups: dict[tuple[Any, ...], list[dict[Any, Any]]] = defaultdict(list)
    for member in outcomes.sort_values(axes, kind="stable").to_dict("records"):
        groups[tuple(member[axis] for axis in axes)].append(member)
    cells = []
    for settings, members in groups.items():
        decided = [one for one in members if one["solved"] in (True, False)]
        steps = [one["steps_to_solve"] for one in decided if one["solved"] and np.isfinite(one["steps_to_solve"])]
        n_solved = sum(bool(one["solved"]) for one in decided)
        cells.append(
            {
                **dict(zip(axes, settings, strict=True)),
                "members": len(members), "decided": len(decided), "solved": n_solved,
                "share_solved": n_solved / len(decided) if decided else np.nan,
                "steps_to_solve": float(np.median(steps)) if steps else np.nan,
            }
        )  # fmt: skip
    return pd.DataFrame(cells)
