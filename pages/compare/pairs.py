"""Minimal pairs: two inputs through one model, and which of its parts carries the difference that they make."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.pair_inputs import FIRST, SECOND, ask_inputs
from pages.compare.pair_map import PairView, map_panel
from pages.compare.pair_measure import ask_measure, measured, show_tokens
from pages.shared import link as link_of_screen
from pages.shared import models, resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.model_choice import ask_model
from pages.shared.open_model import wait_until_open
from pages.shared.session import LookedAt
from xformer.analysis.minimal_pair import why_no_pair
from xformer.errors import InputError, XformerError
from xformer.subjects import TaskModel

SHORT = 64
"""Tokens up to which every cell of a model of ours is measured at once."""


def pairs_panel(looked: LookedAt, beside: DeltaGenerator) -> None:
    """Ask for the pair, show where it differs and what is measured, and draw the map; `beside` is room for buttons."""
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model) or models.usable(model):
        st.error(escape_markdown(problem))
        return
    subject = models.subject(model)
    found: dict[str, str] = {}
    try:
        sources = ask_inputs(subject, model, beside)
        one, other = (resources.run(model, source) for source in sources)
        if why := why_no_pair(one, other):
            raise InputError(why)
        if looked.edits or looked.mask != resources.MASKS[0]:
            st.caption("The model is read as it was trained: what is changed on the other screens is left out here.")
        show_tokens(one, other)
        pair = ask_measure(one, other)
        found["output"] = str(pair.position)
        st.markdown(measured(pair))
        is_small = isinstance(subject, TaskModel) and one.logits.shape[1] <= SHORT
        found |= map_panel(PairView(model), pair, "exact" if is_small else "quick")
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=":material/compare_arrows:")
    texts = {"input": str(st.session_state[FIRST]), "other": str(st.session_state[SECOND])}
    link_of_screen.share(
        {"model": model, **texts, "mask": looked.mask, **({"edits": looked.edits} if looked.edits else {}), **found}
    )
