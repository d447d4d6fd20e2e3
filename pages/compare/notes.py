"""What to notice where players are compared: sentences with the numbers of these very rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pages.compare.comparison import Comparison
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import table
from xformer import analysis
from xformer.viz.theme import RIGHT, WRONG

ROUNDING = 1e-6
"""Nats: a divergence below it is float32's rounding."""


def compare_notes(comparison: Comparison) -> list[str]:
    """The notes, the parting first."""
    rollouts = comparison.rollouts()
    steps = table(comparison, analysis.predictions_by_step, rollouts)
    return list(_notes(comparison, steps, table(comparison, analysis.divergence_by_step, rollouts)))


def _notes(comparison: Comparison, steps: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[str]:
    yield _parting(comparison, steps)
    if scores := [
        f"{rollout.name[0]} {sum(rollout.right)} of {len(rollout.answer)}"
        for rollout in comparison.rollouts()
        if rollout.right
    ]:
        yield f"Right tokens on this input: {', '.join(scores)}."
    yield from _apart(comparison, pairs)
    if len(pairs) and not bool(pairs["same_context"].all()):
        first = pairs.loc[~pairs["same_context"], "step"].min()
        equal = "" if comparison.forced else " " + _equal_terms(comparison)
        yield (
            f"From {comparison.unit} {first} on (hatched) they have read different tokens, so later differences may only "
            f"follow from the first one.{equal}"
        )


def _parting(comparison: Comparison, steps: pd.DataFrame) -> str:
    """Where they part, with what each says there; or that they do not."""
    unit, parting, rollouts = comparison.unit, comparison.divergence(), comparison.rollouts()
    if parting is None:
        shortest = min(map(len, rollouts))
        if shortest < max(map(len, rollouts)):
            return f"All players say the same for as long as all of them go on, which is up to {unit} {shortest - 1}."
        more = (
            " “Find a difference” looks for an input on which they do not." if len(set(comparison.choices)) > 1 else ""
        )
        return f"All players say the same here, at every {unit}.{more}"
    said = []
    for row in steps.loc[steps["step"] == parting].to_dict("records"):
        verdict = "" if row["right"] is None else f"{RIGHT.mark} right, " if row["right"] else f"{WRONG.mark} wrong, "
        said.append(
            f"{row['player'][0]} says **{escape_markdown(row['token'])}** with probability {row['probability']:.3f} "
            f"({verdict}{row['entropy']:.2f} bits undecided)"
        )
    return f"They part first at {unit} **{parting}**: {'; '.join(said)}."


def _apart(comparison: Comparison, pairs: pd.DataFrame) -> Iterator[str]:
    """How far apart what they believe is, where it can be said in a number."""
    finite = pairs.loc[pairs["kl"] != float("inf")]
    if len(finite) and finite["kl"].max() > ROUNDING:
        most = finite.loc[finite["kl"].idxmax()]
        yield (
            f"What {most['one'][0]} and {most['other'][0]} believe is furthest apart at {comparison.unit} "
            f"{most['step']}, by {most['kl']:.3g} nats (KL), where they say "
            f"{'the same token' if most['same_token'] else 'different tokens'}."
        )
    elif len(finite) and len(finite) == len(pairs):
        largest = finite["kl"].max()
        how = "to the last bit" if largest == 0 else f"to within {ROUNDING:g} nats"
        yield f"Their probabilities are equal {how} at every {comparison.unit} that two of them take."
    if len(finite) < len(pairs):
        yield "A KL of ∞ means that one gives some probability to a token which the other does not have at all."


def _equal_terms(comparison: Comparison) -> str:
    if not comparison.has_right_answer:
        return "“Along it” leads all of them along the text, and so compares them on equal terms."
    return "“Forced” gives all of them the right answer, and so compares them on equal terms."
