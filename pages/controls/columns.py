"""Layout helpers of screens: theme, headline, cached charts, captions, and the notes at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import altair as alt
import streamlit as st

from pages.controls.text import explained, words_in
from pages.state.view import ORIGINAL

WIDE = 8
"""Maximum number of positions for which two charts are drawn side by side."""


def is_dark() -> bool:
    """Whether the visitor uses the dark theme."""
    return st.context.theme.type == "dark"


def run_title(name: str) -> str:
    """Return the heading of one of two pictures: "Original" or "With" and the name of the change."""
    return "Original" if name == ORIGINAL else f"With {name}"


def headline(finding: str) -> None:
    """Draw the main finding of a screen above its picture; an empty finding draws nothing.

    `finding` is one sentence of Markdown. It is computed from the run on screen, and empty if the run does not show it.
    """
    if finding:
        with st.container(key="headline"):
            st.markdown(finding, help=explained(finding))


@st.cache_data(max_entries=256, show_spinner=False)
def chart_spec(picture: tuple, _draw: Callable[[], Any]) -> Any:
    """Return a chart as a Vega-Lite specification, cached by the plain values in `picture`; a Plotly figure unchanged."""
    chart = _draw()
    if not isinstance(chart, alt.TopLevelMixin):
        return chart
    spec = chart.to_dict(validate=False)  # validation takes longer than drawing, and the tests validate every chart
    del spec["config"]  # Altair's default size; the page sets its own
    return spec


def what_to_notice(notes: Iterable[str]) -> None:
    """Draw the box at the end of a screen, one paragraph per note, with a “?” that explains technical terms not seen above."""
    known: set[str] = set()
    with st.container(border=True, key="what_to_notice"):
        st.markdown("**What to notice**")
        for note in notes:
            st.markdown(note, help=explained(note, except_for=known))
            known.update(words_in(note))


def caption(text: str) -> None:
    """Draw the caption of a picture, with a “?” that explains its technical terms."""
    st.caption(text, help=explained(text))
