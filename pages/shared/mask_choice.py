"""The choice of an attention mask in the sidebar."""

from __future__ import annotations

import streamlit as st

from pages.shared import resources
from pages.shared.link import carry
from xformer.model_shape import ModelShape


def ask_mask(shape: ModelShape) -> str:
    """One of `resources.MASKS`; the model's own where nothing can be changed."""
    if shape.is_read_only or st.session_state.get("mask") not in resources.MASKS:
        st.session_state["mask"] = resources.MASKS[0]
    carry("mask")
    mask = st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        disabled=shape.is_read_only,
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )
    assert mask is not None  # required, and set above
    return mask
