"""Feed-forward: what do the neurons do? Which fire, on what, what they promote, and what happens without them."""

from __future__ import annotations

import streamlit as st

from pages.feed_forward.pictures import (
    activations_panel,
    ask_choice,
    experts_panel,
    firing_panel,
    one_neuron_panel,
    ranked_panel,
    without_neurons,
)
from pages.shared import frame
from pages.shared.picture import panel, toolbar
from pages.shared.session import open_sidebar
from pages.shared.view import View, prediction_panel

PANELS = {"ranked": ranked_panel, "neuron": one_neuron_panel, "map": activations_panel, "firing": firing_panel}


def page() -> None:
    open_sidebar("Feed-forward", "What do the neurons do?").on_each_change(_feed_forward)


def _feed_forward(view: View) -> None:
    prediction_panel(view)
    if view.shape.experts:
        panel(experts_panel, view)
    if view.original().feed_forward and not view.shape.neurons:
        st.info(
            "The feed-forward layers of this model have no separate neurons, as where experts are chosen for each token.",
            icon=":material/info:",
        )
    elif view.original().feed_forward:
        # The pictures that are not shown are not computed.
        with frame.picture():
            with st.container(gap=None):
                says = st.container()
                with toolbar():
                    picture, choice = ask_choice(view)
            panel(PANELS[picture], view, choice, says)
    else:
        without_neurons(view)
    view.share()


page()
