"""Feed-forward: what do the neurons do? Which ones fire, on what, what they promote, and the effect of ablating them."""

from __future__ import annotations

import streamlit as st

from pages.compute.picture import panel, toolbar
from pages.controls import embed
from pages.feed_forward.pictures import (
    activations_panel,
    ask_choice,
    experts_panel,
    firing_panel,
    one_neuron_panel,
    ranked_panel,
    without_neurons,
)
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel

PANELS = {"ranked": ranked_panel, "neuron": one_neuron_panel, "map": activations_panel, "firing": firing_panel}


def _feed_forward(view: View) -> None:
    prediction_panel(view)
    if view.shape.experts:
        panel(experts_panel, view)
    if view.original().feed_forward and not view.shape.neurons:
        st.info(
            "The feed-forward layers of this model have no individual neurons, as in a mixture of experts.",
            icon=":material/info:",
        )
    elif view.original().feed_forward:
        # Only the chosen picture is computed.
        with embed.picture():
            with st.container(gap=None):
                headline_at = st.container()
                with toolbar():
                    picture, choice = ask_choice(view)
            panel(PANELS[picture], view, choice, headline_at)
    else:
        without_neurons(view)
    view.share()


open_sidebar("Feed-forward", "What do the neurons do?").on_each_change(_feed_forward)
