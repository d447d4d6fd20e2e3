"""“Over the image”: what the class token, or any patch, looks at in every layer and head, laid over the pixels."""

from __future__ import annotations

import streamlit as st

from pages.shared.link_widgets import choose
from pages.shared.picture import of_each_run
from pages.shared.view import View
from xformer import viz

LAID = {"heads": "attention of every head", "rollout": "rollout"}


def over_image_panel(view: View) -> None:
    """Draw it for every run."""
    names = view.original().tokens
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        laid = choose("laid", LAID, "heads", "Laid over the image")
        who = choose("from", {name: name for name in names}, names[0], "Looking from", widget=st.selectbox, width=160)
    of_each_run(view, "over-image", viz.over_image, query=names.index(who), laid=laid)
    if laid == "rollout":
        st.caption(
            f"How much of each patch could have reached **{who}** after each layer, by the patterns alone: half of a stream "
            "passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). What values, norms and "
            "feed-forward layers do is not in it."
        )
    else:
        st.caption(
            f"Where **{who}** looks: one row per layer, one column per head, last their mean. Tiles are the patches' shares "
            "(from 0 to 1, spaced by the square root), squares the ink, and above each picture is what goes to the class token."
        )
