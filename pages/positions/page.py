"""Positions: how does the model know where a token is? Switch them off, inspect its own kind, and compare all kinds."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.compute.picture import panel, toolbar
from pages.controls import embed
from pages.controls.columns import what_to_notice
from pages.controls.widgets import ask_side, choose
from pages.positions.panels import (
    OFF,
    TITLES,
    found_kind,
    offsets_panel,
    own_panel,
    places_panel,
    position_kinds_panel,
    position_note,
    positions_off_panel,
)
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel, toggle_edit

BY_SIDE = {"own": own_panel, "offsets": offsets_panel, "kinds": position_kinds_panel}


def _positions(view: View) -> None:
    prediction_panel(view)
    panels, show, side = _panels(view), "", None
    with st.container(gap=None):
        headline_at = st.container()
        with st.container(key="positions_tools"):
            controls = toolbar()
        picture = embed.picture()
    with controls:
        if panels:
            show = choose(
                "show", panels, next(iter(panels)), "Show", key="positions_show", label_visibility="collapsed"
            )
            side = ask_side() if show in BY_SIDE and view.is_encoder_decoder else None
        if view.shape.can_drop_positions:
            _switch(OFF in view.on)
    if not view.shape.can_drop_positions:
        own = "This model has no positions that could be switched off."
        external = "No positions that could be switched off were found in this model."
        st.info(own if view.task is not None else external, icon=":material/info:")
    with picture:
        if show in BY_SIDE:
            panel(BY_SIDE[show], view, side)
        elif show == "places":
            panel(places_panel, view)
        elif show:
            panel(positions_off_panel, view, headline_at, controls)
    if note := position_note(view, side, show):
        what_to_notice([note])
    view.share()


def _panels(view: View) -> dict[str, str]:
    """Return the panels of this model."""
    panels = {"attention": "On/off"} if view.shape.can_drop_positions else {}
    if view.task is None:
        how = found_kind(view)
        own = {"own": TITLES[how], "offsets": "Distance"} if how else {}
        return panels | ({"offsets": TITLES[how]} if how == "biased" else own)
    kind = view.config.position_kind
    if kind.acts_on != "nothing":
        panels |= {"offsets": kind.title} if kind.is_drawn_by_offset else {"own": kind.title, "offsets": "Distance"}
    if view.shape.image and kind.acts_on == "stream":
        panels["places"] = "Patches"
    return panels | {"kinds": "All kinds"}


def _switch(is_off: bool) -> None:
    to, kind = ("on", "secondary") if is_off else ("off", "primary")
    toggle: dict[str, Any] = {"type": kind, "on_click": toggle_edit, "args": (OFF,)}
    st.button(f"Switch positions {to}", icon=f":material/location_{to}:", key="positions_off", **toggle)


open_sidebar("Positions", "How does the model know where a token is?").on_each_change(_positions)
