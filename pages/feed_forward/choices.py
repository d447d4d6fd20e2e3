"""What a visitor looks at on this screen: a picture, a layer and a neuron. All three stand in the link."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.shared.link import chose
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import choose, seed
from xformer.analysis.feed_forward import activity
from xformer.site import Site, layer_title

PICTURES = {"map": "All neurons", "token": "One token", "neuron": "One neuron", "firing": "How many fire"}
MOST_LAYERS_BESIDE = 8
"""Up to so many layers stand beside each other; more in a list."""
_PICTURE, NEURON = "ff_picture", "ff_neuron"


@dataclass(frozen=True)
class Choice:
    """A feed-forward layer and one of its neurons."""

    layer: int
    """Counted among the feed-forward layers, from 0."""
    site: Site
    title: str
    """As a person reads it: "layer 2"."""
    neuron: int


def ask_picture() -> str:
    """Which of `PICTURES`."""
    return choose("picture", PICTURES, "map", "Picture", key=_PICTURE, label_visibility="collapsed")


def ask_choice(view: View) -> Choice:
    """Which feed-forward layer, with the switch that mutes it; and the neuron that the visitor or the link has chosen, else the
    most active one of the layer."""
    run = view.original()
    sites, is_pair = run.feed_forward, view.is_pair
    titles = {
        site.path.removesuffix(".ffn"): layer_title(site.path, is_pair=is_pair).removeprefix("layer ") for site in sites
    }
    few = len(sites) <= MOST_LAYERS_BESIDE
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look = {
            "widget": st.segmented_control if few else st.selectbox,
            "width": "content" if few else 180,
        }
        name = choose("layer", titles, list(titles)[-1], "Layer", key=f"ff_layer_{few}", **look)
        layer = list(titles).index(name)
        path, title = sites[layer].path, layer_title(sites[layer].path, is_pair=is_pair)
        switch(
            view,
            f"mute:{path}",
            f"Mute {title}",
            f"Bring {title} back",
            "The whole feed-forward layer adds nothing; the model runs again.",
        )
    mean = activity(run, layer=layer).mean(dim=0)  # [d_ff]
    seed("neuron", range(len(mean)), int(mean.argmax()), key=NEURON)
    chose("neuron", str(st.session_state[NEURON]))
    return Choice(layer, sites[layer], title, int(st.session_state[NEURON]))


def look_at(neuron: int) -> None:
    """Turn to one neuron. A callback."""
    st.session_state[NEURON], st.session_state[_PICTURE] = neuron, "neuron"


def switch(view: View, change: str, off: str, on: str, explained: str) -> None:
    """A button that takes a part out of the running model and, where it is out, brings it back."""
    is_off = change in view.on
    st.button(
        on if is_off else off,
        icon=":material/volume_up:" if is_off else ":material/volume_off:",
        on_click=toggle_intervention,
        args=(change,),
        key=f"{change.partition(':')[0]}_switch",
        help=explained,
    )
