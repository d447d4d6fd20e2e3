"""Embeddings: what vector does each token become? The vectors themselves, their angles, and the whole vocabulary."""

from __future__ import annotations

import streamlit as st

from pages.shared.ask import ask_side, choose
from pages.shared.panels.embedding_notes import embedding_notes, where_from
from pages.shared.panels.filters import filters_panel, patch_notes, where_patches_come_from
from pages.shared.panels.vectors import SHOWN, vectors_panel
from pages.shared.panels.vocabulary import vocabulary, vocabulary_panel
from pages.shared.session import open_page
from xformer.analysis.embeddings import input_vectors


def page() -> None:
    view = open_page("Embeddings", "What vector does each token become?")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        side = ask_side() if view.is_pair else None
        parts = input_vectors(view.original().trace, side)
        part = choose("part", {name: SHOWN[name] for name in parts}, "tokens", "Show")
    if view.task.rule.is_image:
        st.caption(where_patches_come_from(view))
        vectors_panel(view, part, side)
        filters_panel(view)
        patch_notes(view, parts)
        view.share(part=part)
        return
    st.caption(where_from(view, side, parts))
    vectors_panel(view, part, side)
    chosen = vocabulary_panel(view, side)
    embedding_notes(view, parts, vocabulary(view, side), side)
    view.share(part=part, **chosen, **({"side": side} if side else {}))


page()
