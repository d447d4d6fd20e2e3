"""“One neuron”: where it fires on this input, the sampled inputs at which it writes most, and the switch that silences it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from pages.feed_forward.choices import NEURON, Choice, switch
from pages.feed_forward.exciting import exciting_inputs
from pages.feed_forward.sample import surveyed
from pages.shared.picture import heading, picture
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import View
from xformer import viz
from xformer.formatting import percent

MOST_POSITIONS_BESIDE = 12
"""Up to so many positions, the neuron's bars have room beside the sampled inputs; more stand above them."""


def one_neuron_panel(view: View, choice: Choice) -> None:
    """Ask for a neuron and show it."""
    heading("One neuron")
    path, last = choice.site.path, view.shape.neurons[choice.site.path] - 1
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look: dict[str, Any] = {"min_value": 0, "max_value": last, "step": 1, "width": 180}
        number = st.number_input(f"Neuron (0 to {last})", key=NEURON, persist_state="session", **look)
        choice = replace(choice, neuron=int(number))
        switch(
            view,
            f"neuron:{path}.{choice.neuron}",
            f"Silence #{choice.neuron}",
            f"Let #{choice.neuron} speak again",
            "It stays at 0 at every position; the model runs again.",
        )
        fires = st.empty()
    original, changed = view.original(), view.changed()
    before: dict[str, Any] = {} if changed is None else {"before": original}
    positions = range(len(original.tokens_of(choice.site.stack)))
    shown = ask_window(positions, "ff_from")
    left, right = st.columns([3, 4]) if len(shown) <= MOST_POSITIONS_BESIDE else (st.container(), st.container())
    with left:
        st.markdown(f"**#{choice.neuron} on this input**")
        picture(
            view,
            "neuron",
            viz.neuron,
            changed or original,
            layer=choice.layer,
            neuron=choice.neuron,
            positions=shown if len(shown) < len(positions) else None,
            **before,
        )
        if more := shown_of(positions, shown):
            st.caption(more.strip())
    with right:
        st.markdown(f"**Where #{choice.neuron} writes most in the sampled inputs**, the position outlined")
        found = surveyed(view)
        if found is None:
            return
        exciting_inputs(view, choice, found)
    fired, total = int(found.fired[path][choice.neuron]), found.n_positions[path]
    most = f", most at an activation of **{found.peak[path][0, choice.neuron].item():.3f}**" if fired else ""
    fires.markdown(
        f"fires at **{percent(fired / total, 1)}** of the {total:,} tokens of {found.n_inputs:,} sampled inputs{most}"
    )
