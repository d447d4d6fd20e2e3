"""Tried on the running model: with its positions off, does it notice when it reads the input backwards?"""

from __future__ import annotations

import streamlit as st

from pages.shared.byte_cache import shared
from pages.shared.view import ORIGINAL, View
from xformer.analysis.positions import OrderTest, order_test


def order_trial(view: View) -> None:
    """The largest difference of the outputs, and what follows from it; what is known without a trial where none can be made."""
    found = shared.get(("order", *view.key(ORIGINAL)), lambda: order_test(view.original()))
    if found is None:
        st.caption(
            "An encoder without positions sees a bag of tokens. A decoder still has its causal mask, which tells it how many "
            "tokens came before."
        )
        return
    st.metric("Largest difference", f"{found.difference:.1e}", help="Of any logit, between the two runs.", border=True)
    is_causal = view.shape.is_causal
    st.caption(trial_in_words(found, what="patches" if view.shape.image else "tokens", is_causal=is_causal))


def trial_in_words(found: OrderTest, *, what: str, is_causal: bool) -> str:
    """What was tried, and what came of it."""
    tried = "Tried just now, with positions off: the input, and " + (
        "the same patches in reverse order." if what == "patches" else "the input backwards."
    )
    if found.is_blind:
        outputs = "The answer is the same" if what == "patches" else "Each token gets the same output in both"
        return f"{tried} {outputs}, but for rounding: this model then sees a bag of {what}."
    differ = f"{tried} The outputs differ (its largest logit is {found.scale:.1e})"
    return f"{differ}: the causal mask still tells how many tokens came before." if is_causal else f"{differ}."
