"""Two models on one text, position by position: how far apart they are, where they looked, and when each had decided.

A position of the first is laid beside the last token of the other that ends where it ends, or before: their tokens may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from pages.compare.panels import lens_panel, patterns_panel, rows_panel
from pages.compare.text_player import TextPlayer
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import choose
from pages.shared.picture import panel, picture, table
from xformer import analysis, viz
from xformer.analysis.differences import deciding_at, why_not_apart
from xformer.analysis.residual import WHOLE
from xformer.reading import Reading

PANELS = {"apart": "how far apart", "attention": "where they looked", "rows": "heads", "lens": "when decided"}
ROUNDING = 1e-6
"""Nats: a divergence below it is float32's rounding."""


@dataclass(frozen=True)
class TwoRuns:
    """What the panels ask of what is compared."""

    model: str = "compare"
    unit: str = "position"


def runs_panel(players: Sequence[TextPlayer], sources: Sequence[tuple[int, ...]]) -> dict[str, str]:
    """Ask for a panel and a position, and draw; returns what the link keeps."""
    runs = [player.reading(source) for player, source in zip(players, sources, strict=True)]
    if any(run.is_pair or run.output in WHOLE for run in runs):  # nothing is said at each position
        return {}
    about = TwoRuns()
    is_apart = why_not_apart(*runs) is None
    panels = PANELS if is_apart else {name: words for name, words in PANELS.items() if name != "apart"}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        shown = choose("panel", panels, next(iter(panels)), "Panel", key="texts_panel", label_visibility="collapsed")
        at = _ask_position(about, runs, is_apart=is_apart)
    places = (at, _beside(runs, at))
    if shown == "apart":
        st.markdown(_furthest(about, runs))
        picture(about, "apart", viz.beliefs_apart, runs, at=at)  # type: ignore[arg-type]
        believes = "believes comes next" if runs[0].subject.input.goes_on else "believes of each position"
        st.caption(
            f"How far what {players[1].letter} {believes} is from what {players[0].letter} believes: "
            "KL(A ‖ B) in nats at each position, 0 where they believe the same."
        )
        return {"panel": shown, "position": str(at)}
    two = [player.named(deciding_at(run, place)) for run, place, player in zip(runs, places, players, strict=True)]
    if shown == "attention":
        more: dict[str, str] = {}
        panel(lambda: more.update(patterns_panel(about, at, two)))
        return {"panel": shown, "position": str(at), **more}
    panel(rows_panel if shown == "rows" else lens_panel, about, at, two, (0, 1))
    return {"panel": shown, "position": str(at)}


def _ask_position(about: TwoRuns, runs: Sequence[Reading], *, is_apart: bool) -> int:
    tokens = runs[0].tokens
    usual = len(tokens) - 1 if runs[0].open_output is not None else runs[0].asked[-1]
    if is_apart:
        apart = table(about, analysis.beliefs_apart, runs)["kl"].tolist()
        usual = apart.index(max(apart)) if max(apart) > ROUNDING else usual
    names = {str(at): f"{at} · {token}" for at, token in enumerate(tokens)}
    wanted = choose("position", names, str(usual), "Position", key="texts_position", widget=st.selectbox)
    return int(wanted)


def _beside(runs: Sequence[Reading], at: int) -> int:
    """The position of the other run that has read as much of the text."""
    one, other = ([len(run.subject.input.plain(run.ids()[: n + 1])) for n in range(len(run.tokens))] for run in runs)
    return max((place for place, end in enumerate(other) if end <= one[at]), default=0)


def _furthest(about: TwoRuns, runs: Sequence[Reading]) -> str:
    row = max(table(about, analysis.beliefs_apart, runs).to_dict("records"), key=lambda row: row["kl"])
    if row["kl"] <= ROUNDING:
        return f"What they believe is equal to within {ROUNDING:g} nats at every position of this text."
    is_same = row["one_says"] == row["other_says"]
    if runs[0].output == "token_class":
        same = "the same class is" if is_same else "different classes are"
    else:
        same = "the same token is" if is_same else "different tokens are"
    says = ", ".join(
        f"{letter} {escape_markdown(str(row[f'{which}_says']))} ({row[f'{which}_probability']:.3f})"
        for letter, which in (("A", "one"), ("B", "other"))
    )
    reads = "after" if runs[0].subject.input.goes_on else "which reads"
    return (
        f"They are furthest apart at position {row['position']}, {reads} {escape_markdown(str(row['token']))}: "
        f"{row['kl']:.3g} nats (KL), where {same} likeliest: {says}."
    )
