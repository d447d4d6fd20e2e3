"""The layout of a screen: its theme, pictures side by side, captions, and the notes at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import altair as alt
import streamlit as st

from pages.shared.text import explained, words_in
from pages.shared.view import ORIGINAL

WIDE = 8
"""The number of positions up to which two charts stand side by side."""


def is_dark() -> bool:
    """Whether the visitor sees the dark theme."""
    return st.context.theme.type == "dark"


def run_title(name: str) -> str:
    """The heading of one of two pictures: "Original", or the name of the change."""
    return "Original" if name == ORIGINAL else f"With {name}"


def headline(finding: str) -> None:
    """Draw the finding of a screen, in normal text above its picture; without one nothing is drawn.

    `finding` is Markdown and one sentence. It is computed from the run on screen and silent where the run does not show it.
    """
    if finding:
        with st.container(key="headline"):
            st.markdown(finding, help=explained(finding))


@st.cache_data(max_entries=256, show_spinner=False)
def chart_spec(picture: tuple, _draw: Callable[[], Any]) -> Any:
    """A chart as a Vega-Lite specification, cached by the plain values in `picture`; a Plotly figure as it is."""
    chart = _draw()
    if not isinstance(chart, alt.TopLevelMixin):
        return chart
    spec = chart.to_dict(validate=False)  # the tests validate every chart; it takes longer than drawing one
    del spec["config"]  # the size of an empty chart outside a page
    return spec


def what_to_notice(notes: Iterable[str]) -> None:
    """Draw the box at the end of a screen, a paragraph a note, each with a “?” that explains its new technical terms."""
    known: set[str] = set()
    with st.container(border=True, key="what_to_notice"):
        st.markdown("**What to notice**")
        for note in notes:
            st.markdown(note, help=explained(note, except_for=known))
            known.update(words_in(note))


def caption(text: str) -> None:
    """Draw a sentence at a picture, with a “?” that explains its technical terms."""
    st.caption(text, help=explained(text))
