"""The choice of an attention mask in the sidebar."""

from __future__ import annotations

import streamlit as st

from pages.shared import resources
from pages.shared.link import carry


def ask_mask() -> str:
    """One of `resources.MASKS`."""
    if st.session_state.get("mask") not in resources.MASKS:
        st.session_state["mask"] = resources.MASKS[0]
    carry("mask")
    mask = st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )
    assert mask is not None  # required, and set above
    return mask
