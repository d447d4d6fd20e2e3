"""“Over the image”: what the class token, or any patch, looks at, laid over the pixels."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.picture import of_each_run, table
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz

LAID = {"heads": "attention of every head", "rollout": "rollout"}
OF_A_PHOTOGRAPH = {"head": "the enlarged head", "heads": "all heads of its layer", "rollout": "rollout"}
"""What is laid over an image of many patches: all heads of all layers would be too small to be seen."""


def over_image_panel(view: View, chosen: Selection | None = None) -> None:
    """Draw it for every run; of a photograph for the head that is `chosen`, from the query that is locked there."""
    names = view.original().tokens
    laid_over, locked = LAID if chosen is None else OF_A_PHOTOGRAPH, None if chosen is None else chosen.query
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        laid = choose("laid", laid_over, next(iter(laid_over)), "Laid over the image")
        if locked is None:
            options = {name: name for name in names}
            who = choose("from", options, names[0], "Looking from", widget=st.selectbox, width=160)
        else:
            who = names[locked]
    options: dict[str, Any] = {"laid": laid}
    if chosen is not None and laid != "rollout":
        options = {"layer": chosen.layer} | ({"head": chosen.head} if laid == "head" else {})
    options["query"] = names.index(who)
    if chosen is not None and view.is_changed:  # both runs on one scale
        both = [table(view, analysis.over_image, run, **options) for run in view.runs().values()]
        options["top"] = max(of.loc[of["place"].str.startswith("r"), "weight"].to_numpy().max().item() for of in both)
    of_each_run(view, "over-image", viz.over_image, **options)
    if laid == "rollout":
        st.caption(
            f"How much of each patch could have reached **{who}** after each layer, by the patterns alone: half of a stream "
            "passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). What values, norms and "
            "feed-forward layers do is not in it."
        )
    elif chosen is None:
        st.caption(
            f"Where **{who}** looks: one row per layer, one column per head, last their mean. Tiles are the patches' shares "
            "(from 0 to 1, spaced by the square root), squares the ink, and above each picture is what goes to the class token."
        )
    else:
        from_where = "" if locked is None else ", the query of the locked cell"
        st.caption(
            f"Where **{who}**{from_where} looks, on the image as the model reads it. The stronger the colour of a patch, the "
            "larger its weight; the scale ends at the largest weight of a patch. Lock a cell of the matrix to look from its "
            "query."
        )
