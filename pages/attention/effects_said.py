"""What silencing heads says, in a sentence: who is needed, and whether the head that looks most like something is.

Nothing is said of what moves too little to tell, and nothing of what was only estimated.
"""

from __future__ import annotations

import math

import pandas as pd

from xformer.analysis.heads import TASK
from xformer.analysis.silenced_heads import agreement
from xformer.words import percent

CLEAR = 0.4
"""A head with less of its attention there does not look like anything."""
LEAST, WORTH = 0.02, 0.05
"""What moves the measure by less than this, and less than this share of it, is not needed."""
FEW = 5
"""Of fewer heads a correlation says nothing."""


def sentence(frame: pd.DataFrame, kind: str, goal: str, before: float) -> str:
    """`frame` has the columns of `analysis.head_effects`, a score in the column `kind`, and each head's name; `before` is what
    `goal`, the measure, was with all heads."""
    there = frame.dropna(subset="measured")
    worth = max(LEAST, WORTH * abs(before))
    among = "" if len(there) == len(frame) else f" of the {len(there)} heads of {len(frame)} that are measured"
    best = there.loc[there["measured"].abs().idxmax()]
    if abs(best["measured"]) < worth:
        said = [
            f"No head{among} is needed for itself: without one the {goal} moves by {abs(best['measured']):.3f} at most."
        ]
    else:
        said = [
            f"Without **{best['name']}** the {goal} goes from {before:.3f} to {before + best['measured']:.3f}, further than "
            f"without any other{among}."
        ]
    alike = frame.loc[frame[kind].astype(float).idxmax()]
    share, moved = float(alike[kind]), float(alike["measured"])
    if share >= CLEAR:
        looks = f"the highest {'task' if kind == TASK else kind} score, {percent(share, 0)}"
        if alike["name"] == best["name"] and abs(moved) >= worth:
            said.append(f"It has {looks}, too.")
        elif abs(moved) >= worth:
            said.append(f"**{alike['name'].capitalize()}**, with {looks}, is needed as well: {moved:+.3f}.")
        elif abs(moved) < worth / 2:
            said.append(
                f"**{alike['name'].capitalize()}** has {looks}, and is not needed here: {moved:+.3f} without it."
            )
    ranks = agreement(frame)
    if not among and len(there) >= FEW and not math.isnan(ranks):
        said.append(f"Rank agreement of the estimates with the measurements: Spearman’s ρ = {ranks:.2f}.")
    return " ".join(said)
