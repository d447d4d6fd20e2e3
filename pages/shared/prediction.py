"""What the model reads and says on this input, as lanes of tokens, and in a sentence how well it did."""

from __future__ import annotations

import streamlit as st

from pages.components.prediction_strip import prediction_strip
from pages.shared import frame
from pages.shared.layout import caption
from pages.shared.view import View


def prediction_panel(view: View) -> None:
    """The lanes, and the sentence under them."""
    with frame.also("lanes"):
        prediction_lanes(view)
    prediction_sentence(view)


def prediction_lanes(view: View, what: str = "") -> None:
    """The lanes of the original and, where there is one, of the changed run; `what` names the changes."""
    name = f"says, {what or view.what_changed()}"
    prediction_strip(view.kind.rows(view.original(), view.changed(), name), key="strip")


def prediction_sentence(view: View, what: str = "") -> None:
    """How many tokens are right, or how surprised the model is where nothing is right or wrong; with changes, from where to
    where that goes."""
    original, changed, what = view.original(), view.changed(), what or view.what_changed()
    if changed is not None and original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {what} this model does exactly what it does anyway: nothing changes.", icon=":material/equal:")
        return
    if not original.asked:
        caption("Nobody knows what should be said to this, so nothing here is right or wrong.")
        return
    caption(view.kind.sentence(original, changed, what), width="stretch")
