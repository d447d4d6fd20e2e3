"""What the model reads and says on this input, as lanes of tokens, and in a sentence how well it did."""

from __future__ import annotations

import streamlit as st

from pages.shared.components.prediction_strip import prediction_strip
from pages.shared.lanes import lanes
from pages.shared.view import View


def prediction_panel(view: View) -> None:
    """The lanes, and the sentence under them."""
    prediction_lanes(view)
    prediction_sentence(view)


def prediction_lanes(view: View, what: str = "") -> None:
    """The lanes of the original and, where there is one, of the changed run; `what` names the changes."""
    name = f"says, {what or view.what_changed()}"
    prediction_strip(lanes(view.task, view.original(), view.changed(), name), key="strip")


def prediction_sentence(view: View, what: str = "") -> None:
    """How many tokens are right, and what the loss is; with changes, from where to where they go."""
    original, changed, what = view.original(), view.changed(), what or view.what_changed()
    n = len(original.answer)
    if changed is None:
        given = "" if view.task.config.architecture == "encoder" else ", each token given the right ones before it"
        st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats{given}.", width="stretch")
    elif original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {what} this model does exactly what it does anyway: nothing changes.", icon=":material/equal:")
    else:
        st.caption(
            f"With {what}, {changed.n_right} of {n} are right instead of {original.n_right}; the loss goes from "
            f"{original.loss:.4f} to {changed.loss:.4f} nats. Outlined tokens changed.",
            width="stretch",
        )
