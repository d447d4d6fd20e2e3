"""Which of many positions a picture shows: all of a short input, of a long one a window that a slider moves."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.shared.link import chose
from pages.shared.widgets import seed

MOST = 24
"""So many columns can still be read; a chart of more would not fit a screen either."""


def ask_window(
    positions: Sequence[int], key: str, *, most: int = MOST, said: str = "from", what: str = "positions"
) -> list[int]:
    """The positions to be shown; asks where they begin only if there are more than `most`. The link says it as `said`."""
    if len(positions) <= most:
        return list(positions)
    starts = {positions[index]: positions[index : index + most] for index in range(0, len(positions), most)}
    seed(said, list(starts), positions[0], key=key, called=f"window of {what}")
    start = st.select_slider(
        f"{what.capitalize()} shown",
        list(starts),
        format_func=lambda at: f"{starts[at][0]} to {starts[at][-1]}",
        key=key,
        persist_state="session",
    )
    chose(said, str(start))
    return list(starts[start])


def shown_of(positions: Sequence[int], shown: Sequence[int], what: str = "positions") -> str:
    """What a caption says where not all positions are shown; else nothing."""
    if len(shown) == len(positions):
        return ""
    return f" Shown are {len(shown)} of {len(positions):,} {what}, {shown[0]} to {shown[-1]}; the slider moves them."
