"""The map of a feed-forward layer: every neuron's activation at every position of this input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from pages.shared.ask import choose
from pages.shared.layout import is_dark, what_to_notice
from pages.shared.literal import literal
from pages.shared.notebook import footer, heading, recording
from pages.shared.position_window import ask_window, shown_of
from pages.shared.session import toggle_intervention
from pages.shared.view import ORIGINAL, View
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.feed_forward import MOST_NEURONS, activation_map, by_mean
from xformer.words import percent

FEW = 8
"""Up to so many layers stand beside each other; more in a list."""
STAGES = {"post": "after", "pre": "before"}
ORDERS = {"sorted": "sorted", "plain": "by number"}


def ask_layer(view: View, paths: list[str]) -> str:
    """Which feed-forward layer, and the switch that mutes it."""
    layers = {path.removesuffix(".ffn"): path for path in paths}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        names = {
            layer: layer_title(path, is_pair=view.is_pair).removeprefix("layer ") for layer, path in layers.items()
        }
        widget = st.segmented_control if len(layers) <= FEW else st.selectbox
        width = "content" if len(layers) <= FEW else 180
        layer = choose(
            "layer", names, list(layers)[-1], "Layer", key=f"ff_layer_{len(layers) <= FEW}", widget=widget, width=width
        )
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
    return path


def activation_name(view: View) -> str:
    """The model's activation function, as people write it."""
    return {"relu": "ReLU", "gelu": "GELU"}[view.checkpoint.config.activation]


def layer_reads(view: View, run: Reading, path: str) -> list[str]:
    """The tokens at the positions of a layer."""
    return view.reads(run, path.partition(".")[0])


def activations_panel(view: View, runs: Mapping[str, Reading], path: str) -> None:
    """Draw the map of every run in the order and on the scale of the original; the chosen neuron is marked."""
    heading("Every neuron at every position")
    act, config = activation_name(view), view.checkpoint.config
    reads = layer_reads(view, runs[ORIGINAL], path)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        stage = choose("stage", STAGES, "post", f"{act} …", key="ff_stage", width="content")
        order = choose("order", ORDERS, "sorted", "Neurons", key="ff_order", width="content")
        shown = ask_window(range(len(reads)), "ff_from")
    chosen = int(st.session_state["ff_neuron"])
    values = {name: run.trace[f"{path}.{stage}"][0].numpy(force=True) for name, run in runs.items()}  # [pos, d_ff]
    post = runs[ORIGINAL].trace[f"{path}.post"][0].numpy(force=True)
    ranking = by_mean(post) if order == "sorted" else np.arange(config.d_ff)
    look: dict[str, Any] = {"signed": stage == "pre" or config.activation != "relu"}
    look |= {"limit": theme.signed_limit(np.stack(list(values.values()))), "dark": is_dark(), "chosen": chosen}
    for index, (name, run) in enumerate(runs.items()):
        if len(runs) > 1:
            st.markdown(
                "**Original**" if name == ORIGINAL else f"**With {literal(name)}**, in the order of the original"
            )
        part, names = values[name][shown], layer_reads(view, run, path)
        figure = activation_map(part, [names[at] for at in shown], ranking, first=shown[0], **look)
        bar = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
        st.plotly_chart(figure, theme="streamlit", key=f"map_{index}", config=bar)
    what = f"Blue fires, orange is what {act} cuts off." if stage == "pre" else f"What {act} lets through."
    if look["signed"] and stage == "post":
        what = f"What {act} makes of them: blue is above 0, orange below."
    few = (
        ""
        if config.d_ff <= MOST_NEURONS
        else f" Shown are the first {MOST_NEURONS:,} of {config.d_ff:,} in this order."
    )
    muted = (
        " The layer is muted: this is computed, and then not added to the stream." if f"mute:{path}" in view.on else ""
    )
    st.caption(
        f"{layer_title(path, is_pair=view.is_pair).capitalize()}: {config.d_ff:,} neurons, one column each. {what} ▲ is neuron "
        f"#{chosen}. Drag to zoom, double-click to return.{few}{muted}{shown_of(range(len(reads)), shown)}"
    )
    lines = ["from xformer.viz.feed_forward import activation_map, by_mean", "import numpy as np", "charts = []"]
    for name, run in runs.items():
        is_own = view.is_changed and name == ORIGINAL
        lines.append(f"run = {recording(run) if is_own else 'trace'}")
        if name == ORIGINAL:
            how = f'by_mean(run["{path}.post"][0].numpy())' if order == "sorted" else f"np.arange({config.d_ff})"
            lines.append(f"order = {how}")
        names = layer_reads(view, run, path)
        arguments = ", ".join(f"{key}={value!r}" for key, value in look.items())
        lines.append(
            f'charts.append(activation_map(run["{path}.{stage}"][0].numpy()[{shown[0]} : {shown[-1] + 1}], '
            f"{[names[at] for at in shown]!r}, order, first={shown[0]}, {arguments}))"
        )
    footer(view, [*lines, "charts"], lambda: _table(values), "activations")
    if notes := map_notes(view, post, path, stage):
        what_to_notice(notes)


def map_notes(view: View, post: np.ndarray, path: str, stage: str) -> list[str]:
    """How many cells are above 0 in the original run, and what another stage would show."""
    share = float((post > 0).mean())
    said = (
        f"In {layer_title(path, is_pair=view.is_pair)}, **{percent(share, 0)}** of the activations on this input are above 0"
        f"{'' if not view.is_changed else ' in the original run'}."
    )
    if stage == "post" and view.checkpoint.config.activation == "relu" and share < 1:
        said += " Switch to **before**: what is below 0 there, ReLU sets to 0 here."
    return [said]


def _table(values: Mapping[str, np.ndarray]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(rows).assign(run=name, position=range(len(rows))) for name, rows in values.items()])
