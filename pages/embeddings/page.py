"""Embeddings: what vector does each token become? The vectors themselves, the whole vocabulary, and waves among numbers."""

from __future__ import annotations

import streamlit as st

from pages.embeddings.notes import embedding_notes, where_from, which_table
from pages.embeddings.patch_filters import filters_panel, patch_notes, where_patches_come_from
from pages.embeddings.vectors import ask_part, vectors_panel
from pages.embeddings.vocabulary import has_waves, number_waves_panel, vocabulary_panel
from pages.shared import frame
from pages.shared.picture import panel
from pages.shared.session import open_sidebar
from pages.shared.view import View
from pages.shared.widgets import ask_side, choose
from xformer.analysis.embeddings import input_vectors
from xformer.errors import UnavailableError

VECTORS, VOCABULARY, WAVES, FILTERS = "vectors", "vocabulary", "waves", "filters"


def page() -> None:
    open_sidebar("Embeddings", "What vector does each token become?").on_each_change(_embeddings)


def _embeddings(view: View) -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        show = choose("show", _panels(view), VECTORS, "Show", key="embeddings_show", label_visibility="collapsed")
        stack = ask_side() if view.is_pair else None
        if view.input.kind == "picture" and "embed" not in view.original():
            raise UnavailableError(
                "The patches of a picture become vectors by a convolution, not by a table of tokens, and of this model its "
                "output was not found."
            )
        parts = input_vectors(view.original(), stack)
        part = ask_part(list(parts)) if show == VECTORS else ""
    if view.task is not None:
        st.caption(where_patches_come_from(view) if view.shape.image else where_from(view, stack, parts))
    elif said := which_table(view, stack):
        st.caption(said)
    with frame.picture():
        if show == VECTORS:
            vectors_panel(view, part, stack)
        elif show == VOCABULARY:
            panel(vocabulary_panel, view, stack)
        elif show == WAVES:
            number_waves_panel(view, stack)
        else:
            filters_panel(view)
    if view.shape.image:
        patch_notes(view, parts)
    else:
        panel(embedding_notes, view, parts, stack, show)
    view.share()


def _panels(view: View) -> dict[str, str]:
    """What there is to see of this model."""
    if view.shape.image:
        return {VECTORS: "this image", FILTERS: "filters"}
    waves = {WAVES: "numbers as waves"} if has_waves(view) else {}
    return {VECTORS: "this input", VOCABULARY: "whole vocabulary", **waves}


page()
