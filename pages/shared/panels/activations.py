"""The map of a feed-forward layer: every neuron's activation at every position of this input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import streamlit as st

from pages.shared.ask import choose, seed
from pages.shared.layout import is_dark
from pages.shared.notebook import footer
from pages.shared.resources import Run
from pages.shared.session import toggle_intervention
from pages.shared.view import ORIGINAL, View
from xformer.viz import theme
from xformer.viz.attention import layer_title
from xformer.viz.feed_forward import activation_map, by_mean

STAGES = {"post": "after", "pre": "before"}
ORDERS = {"sorted": "sorted", "plain": "by number"}


def ask_layer(view: View, paths: list[str]) -> tuple[str, str, str]:
    """Which layer, before or after the activation, its neurons in which order; and the switch that mutes the layer."""
    layers = {path.removesuffix(".ffn"): path for path in paths}
    seed("layer", list(layers), list(layers)[-1], key="ff_layer")
    seed("stage", list(STAGES), "post", key="ff_stage")
    seed("order", list(ORDERS), "sorted", key="ff_order")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        names = {
            layer: layer_title(path, is_pair=view.is_pair).removeprefix("layer ") for layer, path in layers.items()
        }
        layer = choose("layer", names, list(layers)[-1], "Layer", key="ff_layer", width="content")
        stage = choose("stage", STAGES, "post", f"{activation_name(view)} …", key="ff_stage", width="content")
        order = choose("order", ORDERS, "sorted", "Neurons", key="ff_order", width="content")
        path = layers[layer]
        title = layer_title(path, is_pair=view.is_pair)
        muted = f"mute:{path}" in view.on
        st.button(
            f"Bring {title} back" if muted else f"Mute {title}",
            icon=":material/volume_up:" if muted else ":material/volume_off:",
            on_click=toggle_intervention,
            args=(f"mute:{path}",),
            key="mute_layer",
            help="The whole feed-forward layer adds nothing; the model runs again.",
        )
    return path, stage, order


def activation_name(view: View) -> str:
    """The model's activation function, as people write it."""
    return {"relu": "ReLU", "gelu": "GELU"}[view.checkpoint.config.activation]


def layer_reads(view: View, run: Run, path: str) -> list[str]:
    """The tokens at the positions of a layer."""
    return view.reads(run, path.partition(".")[0])


def activations_panel(view: View, runs: Mapping[str, Run], path: str, stage: str, order: str, chosen: int) -> None:
    """Draw the map of every run in the order and on the scale of the original; `chosen` is marked."""
    values = {name: run.trace[f"{path}.{stage}"][0].numpy(force=True) for name, run in runs.items()}  # [pos, d_ff]
    d_ff = view.checkpoint.config.d_ff
    post = runs[ORIGINAL].trace[f"{path}.post"][0].numpy(force=True)
    ranking = by_mean(post) if order == "sorted" else np.arange(d_ff)
    signed = stage == "pre" or view.checkpoint.config.activation != "relu"
    limit = theme.signed_limit(np.stack(list(values.values())))
    for index, (name, run) in enumerate(runs.items()):
        if len(runs) > 1:
            st.markdown("**Original**" if name == ORIGINAL else f"**With {name}**, in the order of the original")
        reads = layer_reads(view, run, path)
        figure = activation_map(values[name], reads, ranking, signed=signed, limit=limit, dark=is_dark(), chosen=chosen)
        config = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
        st.plotly_chart(figure, theme="streamlit", key=f"map_{index}", config=config)
    act = activation_name(view)
    what = f"Blue fires, orange is what {act} cuts off." if stage == "pre" else f"What {act} lets through."
    st.caption(
        f"{layer_title(path, is_pair=view.is_pair).capitalize()}: {d_ff} neurons, one column each, at every position. {what} "
        "▲ is the neuron chosen below. Drag to zoom, double-click to return."
    )
    reads = layer_reads(view, runs[view.shown], path)
    lines = [
        "from xformer.viz.feed_forward import activation_map, by_mean",
        f'values = trace["{path}.{stage}"][0].numpy()',
        f'order = by_mean(trace["{path}.post"][0].numpy())'
        if order == "sorted"
        else f"order = torch.arange({d_ff}).numpy()",
        f"activation_map(values, {reads}, order, signed={signed}, limit={limit:.4f}, dark=False)",
    ]
    table = pd.concat([pd.DataFrame(rows).assign(run=name, position=range(len(rows))) for name, rows in values.items()])
    footer(view, lines, table, "activations")
