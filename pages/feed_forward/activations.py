"""The map of a feed-forward layer: every neuron's activation at every position of this input."""

from __future__ import annotations

import streamlit as st
import torch

from pages.feed_forward.choices import Choice
from pages.shared.layout import what_to_notice
from pages.shared.picture import heading, of_each_run
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import viz
from xformer.formatting import percent
from xformer.viz.feed_forward import MOST_NEURONS_DRAWN, clear_limit, ranking_of
from xformer.viz.theme import signed_limit

STAGES = {"post": "after", "pre": "before"}
GATED = {"post": "their product", "pre": "the gate", "up": "what it gates"}
ORDERS = {"sorted": "sorted", "plain": "by number"}
_FUNCTIONS = {"relu": "ReLU", "gelu": "GELU"}
_OF_A_GATE = {
    "post": "What each adds, times its row of W₂: the nonlinearity of its gate × what that gates.",
    "pre": "What goes into the nonlinearity: blue lets through, orange is held back.",
    "up": "What is multiplied with the nonlinearity of the gate: where that holds back, this adds nothing.",
}


def activations_panel(view: View, choice: Choice) -> None:
    """Draw the map of every run in the order and on the scale of the original; the chosen neuron is marked."""
    heading("Every neuron at every position")
    path, relu = choice.site.path, view.shape.activation == "relu"
    n, function = view.shape.neurons[path], _FUNCTIONS.get(view.shape.activation, "the nonlinearity")
    positions = range(len(view.original().tokens_of(choice.site.stack)))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        kept = [name for name in GATED if f"{path}.{name}" in view.original()]
        is_gated = "up" in kept
        words, asks = (GATED, "Neurons as …") if is_gated else (STAGES, f"{function} …")
        stages = {name: words[name] for name in kept}
        stage = choose("stage", stages, "post", asks, key=f"ff_stage{'_gated' * is_gated}", width="content")
        order = choose("order", ORDERS, "sorted", "Neurons", key="ff_order", width="content")
        shown = ask_window(positions, "ff_from")
        columns = ask_window(range(n), "ff_columns", most=MOST_NEURONS_DRAWN, said="columns", what="columns")
    runs = view.runs().values()
    whole = torch.cat([run[f"{path}.{stage}"][0] for run in runs])  # [pos of every run, d_ff]
    limit, largest = (of(whole.numpy(force=True)) for of in (clear_limit, signed_limit))
    of_each_run(
        view,
        "activations",
        viz.activations,
        layer=choice.layer,
        stage=stage,
        order=order,
        positions=shown if len(shown) < len(positions) else None,
        columns=columns if len(columns) < n else None,
        neuron=choice.neuron,
        limit=limit if len(runs) > 1 else None,
    )
    what = "Blue fires, orange is what ReLU cuts off." if stage == "pre" else "What ReLU lets through."
    if not relu:
        made = f"What {function} makes of them" if stage == "post" else f"What goes into {function}"
        what = f"{made}: blue is above 0, orange below."
    if is_gated:
        what = _OF_A_GATE[stage]
    drawn = ranking_of(view.original(), layer=choice.layer, order=order)[columns]
    mark = f" ▲ is neuron #{choice.neuron}." if choice.neuron in drawn else ""
    muted = (
        " The layer is muted: this is computed, and then not added to the stream." if f"mute:{path}" in view.on else ""
    )
    beyond = (
        f" Colours end at {limit:.3g}: {int((whole.abs() > limit).sum())} of the activations are beyond, up to {largest:.3g}."
        if limit < largest
        else ""
    )
    st.caption(
        f"{choice.title.capitalize()}: {n:,} neurons, one column each. {what}{mark} Ctrl and the wheel zoom, "
        f"dragging moves, a double click returns.{beyond}{muted}"
        f"{shown_of(range(n), columns, 'columns')}{shown_of(positions, shown)}"
    )
    share = (view.original()[f"{path}.post"][0] > 0).double().mean().item()
    whose = " in the original run" if view.is_changed else ""
    said = f"In {choice.title}, **{percent(share, 0)}** of the activations on this input are above 0{whose}."
    if stage == "post" and relu and not is_gated and share < 1:
        said += " Switch to **before**: what is below 0 there, ReLU sets to 0 here."
    what_to_notice([said])
