"""Feed-forward: what do the neurons do? Which fire, on what, what they say, and what happens without them."""

from __future__ import annotations

import streamlit as st

from pages.feed_forward.activations import activations_panel, ask_layer
from pages.feed_forward.activity import activity_panel
from pages.feed_forward.notes import without_neurons
from pages.feed_forward.one_neuron import one_neuron_panel, seed_neuron
from pages.feed_forward.token_neurons import GO, token_neurons_panel
from pages.shared.ask import choose
from pages.shared.prediction import prediction_panel
from pages.shared.session import open_page
from xformer.analysis.survey import feed_forward_layers

PICTURES = {"map": "All neurons", "token": "One token", "neuron": "One neuron", "firing": "How many fire"}
PANELS = {
    "map": activations_panel,
    "token": token_neurons_panel,
    "neuron": one_neuron_panel,
    "firing": activity_panel,
}


def page() -> None:
    view = open_page("Feed-forward", "What do the neurons do?")
    runs = view.runs()
    prediction_panel(view)
    paths = list(feed_forward_layers(view.checkpoint.model))
    if not paths:
        view.share()
        without_neurons(view)
        return
    if asked := st.session_state.pop(GO, None):  # a row of a table was chosen
        st.session_state["ff_picture"] = asked
    # The pictures that are not shown are not computed.
    picture = choose("picture", PICTURES, "map", "Picture", key="ff_picture", label_visibility="collapsed")
    path = ask_layer(view, paths)
    neuron = seed_neuron(view, path)
    view.share(layer=path.removesuffix(".ffn"), neuron=str(neuron))
    PANELS[picture](view, runs, path)
    view.share(layer=path.removesuffix(".ffn"), neuron=str(st.session_state["ff_neuron"]))


page()
