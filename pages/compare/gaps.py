"""Two models that fill gaps: what each puts where a word is missing, beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.compare.text_player import TextPlayer
from pages.compare.text_runs import TwoRuns
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption
from pages.shared.picture import footer, table
from xformer import analysis
from xformer.adapters.huggingface_opening import CLASSES
from xformer.reading import Reading

MOST_GAPS = 4


def gaps_panel(players: Sequence[TextPlayer], sources: Sequence[tuple[int, ...]]) -> None:
    """What each says at each place that it is asked about, and of the first gaps the alternatives with their probabilities."""
    runs = [player.named(player.reading(source)) for player, source in zip(players, sources, strict=True)]
    prediction_strip([_lane(player, run) for player, run in zip(players, runs, strict=True)], key="compare_gaps")
    word, several = _outputs(runs[0])
    if word == "token" and any(run.answer == tuple(run.ids()[at] for at in run.asked) for run in runs):
        caption("Nothing is missing from this text: at each place stands the token that each finds likeliest there.")
        return
    found = table(TwoRuns(), analysis.gap_fillings, runs)
    numbers = found["gap"].unique().tolist()[:MOST_GAPS]
    share = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
    for place, number in zip(st.columns(max(2, len(numbers))), numbers, strict=False):
        one = found[found["gap"] == number].pivot(index="token", columns="player", values="probability")
        one = one.reindex(columns=[run.subject.name for run in runs]).sort_values(runs[0].subject.name, ascending=False)
        with place:
            st.markdown(f"**{_asked(runs[0], number)}**")
            st.dataframe(
                one.rename_axis(word).rename(
                    columns=dict(zip(one.columns, (player.letter for player in players), strict=True))
                ),
                column_config={player.letter: share for player in players},
                key=f"compare_gap_{number}",
            )
    caption(
        f"The likeliest {several} of each with what both give them; nobody knows what is right. Empty: it has no such {word}."
    )
    footer(TwoRuns(), "gaps", [Call(analysis.gap_fillings, (runs,))])


def _outputs(run: Reading) -> tuple[str, str]:
    """One of the things that it chooses among, and several."""
    if run.output == "answer_span":
        return "position", "positions"
    return ("class", "classes") if run.output in CLASSES else ("token", "tokens")


def _asked(run: Reading, number: int) -> str:
    """What one of the outputs is about."""
    if run.output == "answer_span":
        return ("Start", "End")[number]
    if run.output == "token_class":
        return f"Position {run.asked[number]}, {escape_markdown(run.tokens[run.asked[number]])}"
    return "Class" if run.output in CLASSES else f"Gap {number + 1}"


def _lane(player: TextPlayer, run: Reading) -> Lane:
    said = tuple(run.subject.labels[token] for token in run.predicted)
    return Lane(f"{player.letter} says", said, probability=run.probability)
