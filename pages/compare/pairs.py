"""Minimal pairs: two inputs through one model, and which of its parts carries the difference that they make."""

from __future__ import annotations

from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.one_model import one_model
from pages.compare.pair_inputs import SECOND, ask_inputs
from pages.compare.pair_map import PairView, map_panel
from pages.compare.pair_measure import ask_measure, measured, show_tokens
from pages.shared import resources
from pages.shared.session import LookedAt
from xformer.adapters import ModelAdapter
from xformer.analysis.minimal_pairs import why_no_pair
from xformer.errors import InputError


def pairs_panel(looked: LookedAt, beside: DeltaGenerator) -> None:
    """Ask for the pair, show where it differs and what is measured, and draw the map; `beside` is room for buttons."""
    one_model(looked, ":material/compare_arrows:", partial(_pair, looked, beside))


def _pair(looked: LookedAt, beside: DeltaGenerator, subject: ModelAdapter, model: str, link: dict[str, str]) -> None:
    try:
        sources = ask_inputs(subject, model, beside)
    finally:
        link["other"] = str(st.session_state[SECOND])
    one, other = (resources.run(model, source) for source in sources)
    if why := why_no_pair(one, other):
        raise InputError(why)
    if looked.edits or looked.mask != resources.MASKS[0]:
        st.caption("The model is read as it was trained: what is changed on the other screens is left out here.")
    show_tokens(one, other)
    pair = ask_measure(one, other)
    link["output"] = str(pair.position)
    st.markdown(measured(pair))
    link |= map_panel(PairView(model), pair)
