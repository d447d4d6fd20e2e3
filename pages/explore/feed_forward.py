"""Feed-forward: what do the neurons do? Which fire, on what, what they say, and what happens without them."""

from __future__ import annotations

import streamlit as st

from pages.shared.panels.activations import activations_panel, ask_layer
from pages.shared.panels.neuron_activity import activity_panel, surveyed
from pages.shared.panels.neuron_notes import neuron_notes, without_neurons
from pages.shared.panels.one_neuron import one_neuron_panel, seed_neuron
from pages.shared.panels.prediction import prediction_panel
from pages.shared.panels.token_neurons import seed_position, token_neurons_panel
from pages.shared.session import open_page
from xformer.analysis.survey import feed_forward_layers


def page() -> None:
    view = open_page("Feed-forward", "What do the neurons do?")
    runs = view.runs()
    prediction_panel(view)
    paths = list(feed_forward_layers(view.checkpoint.model))
    if not paths:
        view.share()
        without_neurons(view)
        return

    path, stage, order = ask_layer(view, paths)
    chosen = seed_neuron(view, path)
    seed_position(view, path)
    activations_panel(view, runs, path, stage, order, chosen)
    firing = st.container()  # filled last: the sample takes a moment when a model is met for the first time
    position, table = token_neurons_panel(view, runs, path)
    found = surveyed(view.model)
    with firing:
        shares = activity_panel(view, runs, paths, found)
    one_neuron_panel(view, runs, path, found)
    view.share(
        layer=path.removesuffix(".ffn"),
        stage=stage,
        order=order,
        pos=str(position),
        neuron=str(st.session_state["ff_neuron"]),
    )
    neuron_notes(view, path, shares, found, table, position)


page()
