"""A model that has no neurons: say so, and where there are some."""

from __future__ import annotations

import streamlit as st

from pages.shared import models
from pages.shared.layout import what_to_notice
from pages.shared.view import View


def without_neurons(view: View) -> None:
    """The sentence, a button for each shipped model that has some, and what this one does without them."""
    n = view.shape.n_layers
    st.info(
        f"This model has no feed-forward layer: its {n} layer{'s are' if n > 1 else ' is'} attention alone, so there are no "
        "neurons to look at.",
        icon=":material/hub:",
    )
    usable = [name for name in models.shipped() if not models.usable(name)]
    others = {name: d_ff for name in usable if (d_ff := max(models.subject(name).shape.neurons.values(), default=0))}
    if others:
        st.markdown("These models have some:")
        with st.container(horizontal=True):
            for name, d_ff in others.items():
                st.button(f"{name} · {d_ff} neurons per layer", on_click=_use_model, args=(name,), key=f"use_{name}")
    original = view.original()
    if notes := attention_alone(original.n_right, len(original.answer), judged=original.has_right_answer):
        what_to_notice(notes)


def attention_alone(n_right: int, n: int, *, judged: bool) -> list[str]:
    """What a model gets right without a single neuron; nothing where it gets next to nothing right, or nothing is right."""
    if not judged or 2 * n_right < n:
        return []
    return [f"The model as trained gets {n_right} of {n} right on this input without a single neuron."]


def _use_model(name: str) -> None:
    st.session_state["model"] = name
