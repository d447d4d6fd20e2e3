"""The sweeps that start with one press, each with what it asks."""

from __future__ import annotations

import math

import streamlit as st

from pages.train.own_settings import start
from xformer.training.ready_sweeps import READY


def ready_sweeps(who: str, ticket: int) -> None:
    """Draw them."""
    with st.container(border=True, gap="small", key="sweeps_ready"):
        st.markdown("**Many models at once** :small[:gray[ready to start]]")
        for one in READY.values():
            n, steps = math.prod(map(len, one.settings.values())), one.preset.train.steps
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"sweep_{one.name}"):
                with st.container(gap=None, width="stretch"):
                    st.markdown(f"**{one.title}** :small[:gray[{n} models · {steps:,} steps each at most]]")
                    st.caption(one.about)
                st.button(
                    "Start",
                    type="primary" if one.name == "seeds" else "secondary",
                    icon=":material/play_arrow:",
                    on_click=start,
                    args=(one.preset, "auto", one.title, ticket, one.settings),
                    disabled=not who,
                    key=f"start_sweep_{one.name}",
                )
