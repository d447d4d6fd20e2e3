"""What to notice where players are compared: sentences with the numbers of these very plays."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import streamlit as st

from pages.shared.literal import literal
from pages.shared.panels.compare_lens import lens_sentence
from pages.shared.panels.compare_match import Match
from xformer.analysis.deciding import Moment
from xformer.analysis.parting import pair_frame, step_frame
from xformer.viz.theme import RIGHT, WRONG


def compare_notes(match: Match, step: int, one: Moment | None, other: Moment | None) -> list[str]:
    """The notes, the parting first."""
    steps, pairs = frames(match)
    return list(_notes(match, step, one, other, steps, pairs))


def _notes(
    match: Match, step: int, one: Moment | None, other: Moment | None, steps: pd.DataFrame, pairs: pd.DataFrame
) -> Iterator[str]:
    unit, plays, parting = match.unit, match.plays(), match.parting()
    if parting is None:
        yield f"All players say the same here, at every {unit}. “Find a difference” looks for an input on which they do not."
    else:
        here = steps[steps["step"] == parting].to_dict("records")
        said = [
            f"{_letter(row['player'])} says **{literal(row['token'])}** with probability {row['probability']:.3f} "
            f"({RIGHT.mark + ' right' if row['right'] else WRONG.mark + ' wrong'}, {row['entropy']:.2f} bits undecided)"
            for row in here
        ]
        yield f"They part first at {unit} **{parting}**: {'; '.join(said)}."
    scores = [f"{_letter(play.player.name)} {sum(play.right)} of {len(play.answer)}" for play in plays]
    yield f"Right tokens on this input: {', '.join(scores)}."
    finite = pairs[pairs["kl"] != float("inf")]
    if len(finite) and finite["kl"].max() > 0:
        most = finite.loc[finite["kl"].idxmax()]
        yield (
            f"What {_letter(most['one'])} and {_letter(most['other'])} believe is furthest apart at {unit} {most['step']}, "
            f"by {most['kl']:.3f} nats (KL), where they say {'the same token' if most['same_token'] else 'different tokens'}."
        )
    elif len(finite):
        yield "Their probabilities are equal at every step, to the last bit: the difference makes no difference here."
    if len(finite) < len(pairs):
        yield "A KL of ∞ means that one gives some probability to a token which the other does not have at all."
    apart = pairs[~pairs["same_context"]]["step"]
    if len(apart):
        yield (
            f"From {unit} {apart.min()} on (hatched) they have read different tokens, so later differences may only follow "
            "from the first one."
            + (
                ""
                if match.forced
                else " “Forced” gives all of them the right answer, and so compares them on equal terms."
            )
        )
    if one is not None and other is not None:
        yield lens_sentence(match, step, one, other)[0]


def frames(match: Match) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`step_frame` and `pair_frame` of the plays."""
    return _frames(match.order, match.names, match)


@st.cache_data(max_entries=32, show_spinner=False)
def _frames(order: str, names: tuple[str, ...], _match: Match) -> tuple[pd.DataFrame, pd.DataFrame]:
    return step_frame(_match.plays()), pair_frame(_match.plays())


def _letter(name: str) -> str:
    return name.split(" ")[0]
