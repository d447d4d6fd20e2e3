"""Residual: when is the answer decided, and by which parts? The residual stream is read after every sublayer."""

from __future__ import annotations

import streamlit as st

from pages.residual.pictures import attribution_panel, lens_panel, norms_panel, similarity_panel
from pages.shared import frame
from pages.shared.picture import panel, toolbar
from pages.shared.session import open_sidebar
from pages.shared.view import View, prediction_panel
from pages.shared.widgets import choose
from xformer.adapters.inputs import TokenizedText

PICTURES = {"lens": "Logit lens", "parts": "Logit attribution", "norms": "Norms"}
WITHOUT_LOGITS = {"similarity": "Similarity of texts", "norms": PICTURES["norms"]}
"""The pictures for a model that outputs vectors and no predictions."""
PANELS = {"lens": lens_panel, "parts": attribution_panel, "norms": norms_panel, "similarity": similarity_panel}


def _residual(view: View) -> None:
    prediction_panel(view)
    # Only the chosen picture is computed.
    pictures = PICTURES
    if not view.original().has_logits:
        st.info("This model has no logits, so there is no logit lens and no attribution.", icon=":material/info:")
        reads_texts = isinstance(view.input, TokenizedText)
        pictures = {name: words for name, words in WITHOUT_LOGITS.items() if reads_texts or name == "norms"}
    first = next(iter(pictures))
    with frame.picture():
        with st.container(gap=None):
            headline_at, controls = st.container(), toolbar()
        with controls:
            shown = choose("picture", pictures, first, "Picture", key="residual_picture", label_visibility="collapsed")
        panel(PANELS[shown], view, controls, headline_at)
    view.share()


open_sidebar("Residual", "When is the answer decided?").on_each_change(_residual)
