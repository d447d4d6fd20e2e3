"""How long each player can go on: whole answers right at every length of input, the same inputs for all."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.shared.background_job import progress
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer, shown
from xformer import viz
from xformer.analysis.scoring import HIGH, LengthsDone, comparing_lengths, has_mastered_its_training, how_far
from xformer.words import percent

AT_ONCE = 0.3
"""Seconds of counting before anything is drawn."""


def lengths_panel(comparison: Comparison) -> None:
    """Draw the curves as far as they are counted; the sentence when they are complete."""
    contenders = comparison.contenders()
    job = state().work_on("lengths", comparison.players, lambda: comparing_lengths(contenders), AT_ONCE)
    found: LengthsDone | None = job.latest
    if found is None:
        st.info(escape_markdown(job.problem), icon=":material/info:")
        return
    table = found.frame()
    if found.is_final:
        st.markdown(sentence(table))
    else:
        words = f"{found.done} of {found.total} lengths"
        progress(job, "compare_lengths_bar", found.done / found.total, words, f"{words} are counted.")
    unit = comparison.input.task.rule.unit
    call = Call(viz.lengths_compared, (contenders,), {"unit": unit, "table": table})
    shown(comparison, call, "compare_lengths")
    st.caption(
        f"{found.rows[0]['samples']} fresh inputs of each length, the same for all players, each under its own changes; bands "
        "are 95 % intervals. Points are filled where a player’s training had inputs of that length."
    )
    footer(comparison, "lengths", [call], lambda: table)


def sentence(table: pd.DataFrame) -> str:
    """How far each player goes beyond its training, in words; nothing of one that has not mastered what it was trained on."""
    least, words = percent(HIGH, 0), []
    for name, own in table.groupby("player", sort=False):
        letter = str(name).split(" ")[0]
        far = how_far(own) if has_mastered_its_training(own) else None
        if far is not None:
            words.append(f"**{letter}** up to {far}")
    return f"At least {least} right at every length from its training on: {', '.join(words)}." if words else ""
