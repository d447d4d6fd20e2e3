"""What to notice where players are compared: sentences with the numbers of these very plays."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import streamlit as st

from pages.compare.match import Match
from pages.shared.literal import literal
from xformer.analysis.parting import pair_frame, step_frame
from xformer.viz.theme import RIGHT, WRONG

SAME = 1e-6
"""Nats: a divergence below it is float32's rounding."""


def compare_notes(match: Match) -> list[str]:
    """The notes, the parting first."""
    return list(_notes(match, *frames(match)))


def _notes(match: Match, steps: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[str]:
    yield _parting(match, steps)
    if scores := [
        f"{_letter(play.player.name)} {sum(play.right)} of {len(play.answer)}" for play in match.plays() if play.right
    ]:
        yield f"Right tokens on this input: {', '.join(scores)}."
    yield from _apart(match, pairs)
    if len(pairs) and not bool(pairs["same_context"].all()):
        first = pairs.loc[~pairs["same_context"], "step"].min()
        equal = "" if match.forced else " " + _equal_terms(match)
        yield (
            f"From {match.unit} {first} on (hatched) they have read different tokens, so later differences may only follow "
            f"from the first one.{equal}"
        )


def _parting(match: Match, steps: pd.DataFrame) -> str:
    """Where they part, with what each says there; or that they do not."""
    unit, parting, plays = match.unit, match.parting(), match.plays()
    if parting is None:
        shortest = min(map(len, plays))
        if shortest < max(map(len, plays)):
            return f"All players say the same for as long as all of them go on, which is up to {unit} {shortest - 1}."
        more = " “Find a difference” looks for an input on which they do not." if len(set(match.seats)) > 1 else ""
        return f"All players say the same here, at every {unit}.{more}"
    said = []
    for row in steps.loc[steps["step"] == parting].to_dict("records"):
        verdict = "" if row["right"] is None else f"{RIGHT.mark} right, " if row["right"] else f"{WRONG.mark} wrong, "
        said.append(
            f"{_letter(row['player'])} says **{literal(row['token'])}** with probability {row['probability']:.3f} "
            f"({verdict}{row['entropy']:.2f} bits undecided)"
        )
    return f"They part first at {unit} **{parting}**: {'; '.join(said)}."


def _apart(match: Match, pairs: pd.DataFrame) -> Iterator[str]:
    """How far apart what they believe is, where it can be said in a number."""
    finite = pairs.loc[pairs["kl"] != float("inf")]
    if len(finite) and finite["kl"].max() > SAME:
        most = finite.loc[finite["kl"].idxmax()]
        yield (
            f"What {_letter(most['one'])} and {_letter(most['other'])} believe is furthest apart at {match.unit} "
            f"{most['step']}, by {most['kl']:.3g} nats (KL), where they say "
            f"{'the same token' if most['same_token'] else 'different tokens'}."
        )
    elif len(finite) and len(finite) == len(pairs):
        largest = finite["kl"].max()
        how = "to the last bit" if largest == 0 else f"to within {SAME:g} nats"
        yield f"Their probabilities are equal {how} at every {match.unit} that two of them take."
    if len(finite) < len(pairs):
        yield "A KL of ∞ means that one gives some probability to a token which the other does not have at all."


def _equal_terms(match: Match) -> str:
    if not match.has_right_answer:
        return "“Along it” leads all of them along the text, and so compares them on equal terms."
    return "“Forced” gives all of them the right answer, and so compares them on equal terms."


def frames(match: Match) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`step_frame` and `pair_frame` of the plays."""
    return _frames(match.order, match.names, match)


@st.cache_data(max_entries=32, show_spinner=False)
def _frames(order: str, names: tuple[str, ...], _match: Match) -> tuple[pd.DataFrame, pd.DataFrame]:
    return step_frame(_match.plays()), pair_frame(_match.plays())


def _letter(name: str) -> str:
    return name.split(" ")[0]
