"""What silencing heads shows, in a sentence: the largest effect, and the effect of the head with the highest score.

Nothing is said of effects too small to tell, and nothing of what was only estimated.
"""

from __future__ import annotations

import pandas as pd

from xformer.formatting import at_most, percent
from xformer.viz.ablation import score_title

CLEAR = 0.4
"""A head with less of its attention there does not look like anything."""
LEAST, WORTH = 0.02, 0.05
"""What moves the measure by less than this, and less than this share of it, is not needed."""


def sentence(frame: pd.DataFrame, kind: str, goal: str, before: float) -> str:
    """`frame` has the columns of `analysis.head_effects`, a score in the column `kind`, and each head's name; `before` is what
    `goal`, the measure, was with all heads."""
    there = frame.dropna(subset="measured")
    worth = max(LEAST, WORTH * abs(before))
    among = "" if len(there) == len(frame) else f" of the {len(there)} heads of {len(frame)} that are measured"
    best = there.loc[there["measured"].abs().idxmax()]
    if abs(best["measured"]) < worth:
        said = [
            f"No head{among} is needed for itself: without one the {goal} moves by {at_most(abs(best['measured']), 3)} at most."
        ]
    else:
        said = [
            f"Without **{best['name']}** the {goal} goes from {before:.3f} to {before + best['measured']:.3f}, further than "
            f"without any other{among}."
        ]
    alike = frame.loc[frame[kind].astype(float).idxmax()]
    share, moved = float(alike[kind]), float(alike["measured"])
    if share >= CLEAR:
        looks = f"the highest {score_title(kind)} score, {percent(share, 0)}"
        if alike["name"] == best["name"] and abs(moved) >= worth:
            said.append(f"It has {looks}, too.")
        elif abs(moved) >= worth:
            said.append(f"**{alike['name'].capitalize()}**, with {looks}, is needed as well: {moved:+.3f}.")
        elif abs(moved) < worth / 2:
            said.append(
                f"**{alike['name'].capitalize()}** has {looks}, and is not needed here: {moved:+.3f} without it."
            )
    return " ".join(said)
