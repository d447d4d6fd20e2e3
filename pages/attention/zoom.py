"""The cells around the one that is clicked, one by one, of a head that is too large to be drawn so as a whole."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.picture import picture
from pages.shared.view import View
from xformer import viz
from xformer.analysis.attention_patterns import REACH
from xformer.reading import Reading


def zoom(view: View, chosen: Selection, pooled: int) -> None:
    """Say how the head above is drawn, with `pooled` queries and keys a cell, and show what a click asks for."""
    drawn = f"This input is long: a cell of the enlarged head is the largest of {pooled} × {pooled} weights."
    if chosen.query is None or chosen.key is None:
        st.caption(f"{drawn} Click a cell to see those around it one by one.")
        return
    st.caption(
        f"{drawn} Below, one by one, those around query {chosen.query} and key {chosen.key}, up to {REACH} on each side."
    )
    readings, options = call_of(view, chosen)
    picture(view, "zoom", viz.attention, *readings, around=(chosen.query, chosen.key), **options)


def call_of(view: View, chosen: Selection) -> tuple[tuple[Reading], dict[str, Any]]:
    """The reading and the options of `viz.attention` for the enlarged head: with a changed run of both runs, and of their
    difference."""
    original, changed = view.original(), view.changed()
    before = {} if changed is None else {"before": original}
    return (changed or original,), {"layer": chosen.layer, "head": chosen.head, "scale": chosen.looks.scale, **before}
