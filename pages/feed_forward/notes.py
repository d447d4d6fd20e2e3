"""What to notice about neurons: whether one of them matters; and of a model that has none."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared import models
from pages.shared.layout import what_to_notice
from pages.shared.position_window import is_judged
from pages.shared.view import View

LITTLE = 0.01
"""A change of the loss, in nats, below which silencing a neuron does next to nothing."""


def table_notes(table: pd.DataFrame, position: int, *, judged: bool) -> list[str]:
    """What silencing the most active neurons at a position does, from their `neuron_table`; nothing where that is not known."""
    known = table.loc[table["loss_change"].notna()]
    if known.empty or not bool((known["activation"] > 0).any()):
        fires = any(activation > 0 for activation in table["activation"])
        return [] if fires else [f"No neuron fires at position {position}."]
    biggest = known.loc[known["loss_change"].abs().idxmax()]
    change, flips = float(biggest["loss_change"]), int(biggest["flips"])
    said = f"{change:+.2g} nats".replace("-", "−")
    outputs = "answers" if judged else "predictions"
    moved = f" and changes {flips} {outputs[:-1] if flips == 1 else outputs}" if flips else ""
    first = (
        f"Of the {len(known)} most active neurons at position {position}, silencing **#{int(biggest['neuron'])}** moves the "
        f"loss the most, by {said}{moved}."
    )
    if not known["flips"].any() and abs(change) < LITTLE:
        first += " So none of them matters by itself on this input. Mute the whole layer for comparison."
    return [first]


def without_neurons(view: View) -> None:
    """A model that has no neurons: say so, and where there are some."""
    n = view.checkpoint.config.n_layers
    st.info(
        f"This model has no feed-forward layer: its {n} layer{'s are' if n > 1 else ' is'} attention alone, so there are no "
        "neurons to look at.",
        icon=":material/hub:",
    )
    usable = [name for name in models.shipped() if not models.usable(name)]
    others = {name: d_ff for name in usable if (d_ff := models.checkpoint(name).config.d_ff)}
    if others:
        st.markdown("These models have some:")
        with st.container(horizontal=True):
            for name, d_ff in others.items():
                st.button(f"{name} · {d_ff} neurons per layer", on_click=_use_model, args=(name,), key=f"use_{name}")
    original = view.original()
    if notes := attention_alone(original.n_right, len(original.answer), judged=is_judged(view)):
        what_to_notice(notes)


def attention_alone(n_right: int, n: int, *, judged: bool) -> list[str]:
    """What a model gets right without a single neuron; nothing where it gets next to nothing right, or nothing is right."""
    if not judged or 2 * n_right < n:
        return []
    return [f"The model as trained gets {n_right} of {n} right on this input without a single neuron."]


def _use_model(name: str) -> None:
    st.session_state["model"] = name
