"""How a model that somebody else made does it: its table, its angles or its biases, at the positions of this input."""

from __future__ import annotations

import streamlit as st

from pages.positions.own_kind import MOST_ROWS_DRAWN, ask_waves
from pages.shared.picture import heading, picture
from pages.shared.row_window import ask_window, every_nth, window_words
from pages.shared.view import View
from xformer import viz
from xformer.analysis.positions import found_positions
from xformer.errors import UnavailableError
from xformer.viz.embeddings import every

TITLES = {"added": "vectors that are added", "turned": "angles", "biased": "biases by distance"}
_OFFSETS = {
    "added": "The dot product of the vectors of two positions of this input, by how far apart they are; the band runs from the "
    "lowest to the highest pair.",
    "turned": "What turning leaves of q · k, for a query that meets its own key, by how far apart the two stand: 1 is all of "
    "it. Both are of length 1, with the same share in every pair of dimensions.",
    "biased": "What is added to a score before the softmax, by how far the key is from the query; negative is before it.",
}


def found_title(view: View) -> str:
    """How this model does it, in a few words; "" where nothing was found."""
    try:
        return TITLES[found_positions(view.original())[0]]
    except UnavailableError:
        return ""


def found_panel(view: View, side: str | None) -> None:
    """What is done at each position of this input."""
    how, found = found_positions(view.original(), side)
    if how == "biased":
        found_offsets_panel(view, side)
        return
    shown, run = ask_window(len(found), MOST_ROWS_DRAWN, "positions_from"), view.original()
    if how == "added":
        left, right = st.columns([3, 2], gap="large")
        with left:
            heading("Some of its dimensions")
            waves = ask_waves(found.shape[1])
            picture(view, "curves", viz.position_curves, run, dimensions=waves, positions=shown, stack=side)
            st.caption("Click a dimension in the legend to pick it out, again to take it back.")
    else:
        right = st.container()
    with right:
        heading("The whole of it" if how == "added" else "Cosine of the angle")
        picture(view, "matrix", viz.position_values, run, positions=shown, stack=side, height=330)
        row = (
            "A row is what is added to the token that stands there."
            if how == "added"
            else "A row is by how much queries and keys are turned there: 1 is not at all, −1 half a turn."
        )
        what, n, width = ("dimensions" if how == "added" else "pairs of dimensions"), *found.shape
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {row}")


def found_offsets_panel(view: View, side: str | None) -> None:
    """What two positions make of each other, by how far apart they are."""
    how, _ = found_positions(view.original(), side)
    heading("Two positions, by how far apart")
    picture(view, "offsets", viz.position_offsets, view.original(), stack=side)
    st.caption(_OFFSETS[how])
