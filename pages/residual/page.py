"""Residual: when is the answer decided, and by which parts? The residual stream is read after every sublayer."""

from __future__ import annotations

import streamlit as st

from pages.compute.picture import panel, table, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose
from pages.residual.pictures import attribution_panel, lens_panel, norms_panel, similarity_panel
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel
from xformer import analysis
from xformer.adapters.inputs import TokenizedText
from xformer.analysis.residual import lens_positions
from xformer.errors import UnavailableError

PICTURES = {"lens": "Logit lens", "parts": "Logit attribution", "norms": "Norms"}
WITHOUT_LENS = {"similarity": "Similarity of texts", "norms": PICTURES["norms"]}
"""The pictures for a model whose stream is not read as predictions."""
PANELS = {"lens": lens_panel, "parts": attribution_panel, "norms": norms_panel, "similarity": similarity_panel}


def _residual(view: View) -> None:
    prediction_panel(view)
    # Only the chosen picture is computed.
    pictures = PICTURES
    if reason := no_lens_reason(view):
        st.info(escape_markdown(reason), icon=":material/info:")
        reads_texts = isinstance(view.input, TokenizedText) and not view.is_encoder_decoder
        pictures = {name: words for name, words in WITHOUT_LENS.items() if reads_texts or name == "norms"}
    first = next(iter(pictures))
    with embed.picture():
        with st.container(gap=None):
            headline_at, controls = st.container(), toolbar()
        with controls:
            shown = choose("picture", pictures, first, "Picture", key="residual_picture", label_visibility="collapsed")
        panel(PANELS[shown], view, controls, headline_at)
    view.share()


def no_lens_reason(view: View) -> str:
    """Explain in one sentence why the stream of a model cannot be read as predictions; "" where it can."""
    run = view.original()
    if not run.has_logits:
        return "This model has no logits, so there is no logit lens and no attribution."
    try:
        table(view, analysis.lens, run, positions=lens_positions(run)[:1])
    except UnavailableError as error:
        return str(error)
    return ""


open_sidebar("Residual", "When is the answer decided?").on_each_change(_residual)
