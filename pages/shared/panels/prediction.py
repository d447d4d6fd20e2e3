"""What the model reads and says on this input, as lanes of tokens, and in a sentence how well it did."""

from __future__ import annotations

import math

import streamlit as st

from pages.shared.components.prediction_strip import prediction_strip
from pages.shared.lanes import lanes
from pages.shared.resources import Run
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
    if view.task.rule.is_image and changed is None:
        st.caption(f"{_class_of(original)}. Loss {original.loss:.4f} nats.", width="stretch")
    elif changed is None:
        given = "" if view.task.config.architecture == "encoder" else ", each token given the right ones before it"
        bits = f" = {original.loss / math.log(2):.3f} bits per character" if view.task.rule.goes_on else ""
        st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats{bits}{given}.", width="stretch")
    elif original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {what} this model does exactly what it does anyway: nothing changes.", icon=":material/equal:")
    elif view.task.rule.is_image:
        st.caption(
            f"With {what}: {_class_of(changed).lower()}. Originally: {_class_of(original).lower()}. The loss goes from "
            f"{original.loss:.4f} to {changed.loss:.4f} nats.",
            width="stretch",
        )
    else:
        st.caption(
            f"With {what}, {changed.n_right} of {n} are right instead of {original.n_right}; the loss goes from "
            f"{original.loss:.4f} to {changed.loss:.4f} nats. Outlined tokens changed.",
            width="stretch",
        )


def _class_of(run: Run) -> str:
    """What a model of images says, how sure it is, and whether that is right."""
    return f"{'Right' if run.n_right else 'Wrong'}: it says {run.predicted[0]}, {run.probability[0]:.2%} sure"
