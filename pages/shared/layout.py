"""How a screen is laid out: the theme it is seen in, pictures side by side, and the notes that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import altair as alt
import streamlit as st

from pages.shared.glossary import explained, words_in
from pages.shared.view import ORIGINAL

WIDE = 8
"""Up to so many positions, two charts stand side by side; more stand one above the other."""


def is_dark() -> bool:
    """Whether the visitor sees the dark theme."""
    return st.context.theme.type == "dark"


def run_title(name: str) -> str:
    """The heading of a picture of the run of that name, where two stand side by side."""
    return "Original" if name == ORIGINAL else f"With {name}"


def places(n_charts: int, n_positions: int) -> list:
    """A container for each chart: side by side where there is room, the first with room for the names of the rows."""
    if n_charts == 2 and n_positions <= WIDE:
        return list(st.columns([4, 3], gap="small"))
    return [st.container() for _ in range(n_charts)]


@st.cache_data(max_entries=256, show_spinner=False)
def chart_spec(picture: tuple, _draw: Callable[[], Any]) -> Any:
    """A chart as Vega-Lite, drawn once for everything that `picture` names: describing one takes longer than a run.

    A figure of Plotly is returned as it is.
    """
    chart = _draw()
    if not isinstance(chart, alt.TopLevelMixin):
        return chart
    spec = chart.to_dict(validate=False)  # the tests check every picture; to check it takes longer than to draw it
    del spec["config"]  # the size of an empty chart outside a page
    return spec


def what_to_notice(notes: Iterable[str]) -> None:
    """The frame that every screen ends in, one paragraph a note; a “?” behind it explains the words that are new in it."""
    known: set[str] = set()
    with st.container(border=True, key="what_to_notice"):
        st.markdown("**What to notice**")
        for note in notes:
            st.markdown(note, help=explained(note, except_for=known))
            known.update(words_in(note))


def caption(text: str, *, width: Literal["stretch", "content"] = "stretch") -> None:
    """A sentence under a picture or above it, with a “?” that explains the words of the field in it."""
    st.caption(text, help=explained(text), width=width)
