"""What to notice about neurons: how few fire, how little one of them matters; and of a model that has none."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared import models
from pages.shared.layout import what_to_notice
from pages.shared.panels.activations import activation_name
from pages.shared.view import View
from xformer.analysis.survey import Survey
from xformer.viz.attention import layer_title


def neuron_notes(
    view: View, path: str, shares: pd.DataFrame, found: Survey, table: pd.DataFrame, position: int
) -> None:
    """The notes on one layer, by the `shares` of the sample and the `table` of the neurons at `position`."""
    row = shares[shares["layer"] == path].iloc[0]
    biggest = table.loc[table["loss_change"].abs().idxmax()]
    said = f"{biggest['loss_change']:+.2g} nats".replace("-", "−")
    flips = int(biggest["flips"])
    what_to_notice(
        (
            f"In {layer_title(path, is_pair=view.is_pair)}, **{row['dead']} of {row['neurons']}** neurons are dead over the "
            f"{found.n_inputs:,} sampled inputs, and at an average token **{row['share_at_once']:.0%}** fire at once: "
            "the work is spread over many.",
            ("One neuron can matter" if flips else "So one neuron rarely matters")
            + f": of the {len(table)} most active at position {position}, silencing **#{int(biggest['neuron'])}** moves the "
            f"loss the most, by {said}, and changes {flips} of the answers. Mute the whole layer for comparison.",
            f"Switch to **before**: {activation_name(view)} is what turns a smooth sheet into on and off. Look through the "
            "exciting inputs for what they share: the same token, the same place, or the same length.",
        )
    )


def without_neurons(view: View) -> None:
    """A model that has no neurons: say so, and where there are some."""
    n = view.checkpoint.config.n_layers
    st.info(
        f"This model has no feed-forward layer: its {n} layer{'s are' if n > 1 else ' is'} attention alone, so there are no "
        "neurons to look at. What it says above, it says by looking things up.",
        icon=":material/hub:",
    )
    usable = [name for name in models.shipped() if not models.usable(name)]
    others = {name: d_ff for name in usable if (d_ff := models.checkpoint(name).config.d_ff)}
    if others:
        st.markdown("These models have some:")
        with st.container(horizontal=True):
            for name, d_ff in others.items():
                st.button(f"{name} · {d_ff} neurons a layer", on_click=_use_model, args=(name,), key=f"use_{name}")
    moves = view.task.config.name in ("reverse", "copy")
    task = "Moving tokens is what attention does, and this task asks for little else" if moves else "Even so"
    original = view.original()
    what_to_notice(
        [f"{task}: the model gets {original.n_right} of {len(original.answer)} right without a single neuron."]
    )


def _use_model(name: str) -> None:
    st.session_state["model"] = name
