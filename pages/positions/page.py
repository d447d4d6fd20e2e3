"""Positions: how does the model know where a token is? Switch them off, look at its own kind, then at all kinds."""

from __future__ import annotations

import streamlit as st

from pages.positions.kinds import (
    TITLES,
    found_offsets_panel,
    found_panel,
    found_title,
    offsets_panel,
    own_positions_panel,
    places_panel,
    position_kinds_panel,
)
from pages.positions.notes import position_notes
from pages.positions.switched_off import positions_off_panel, positions_switch
from pages.shared import frame
from pages.shared.picture import panel
from pages.shared.session import open_sidebar
from pages.shared.view import View
from pages.shared.widgets import ask_side, choose

ATTENTION, OWN, OFFSETS, PLACES, ALL_KINDS = "attention", "own", "offsets", "places", "kinds"


def page() -> None:
    open_sidebar("Positions", "How does the model know where a token is?").on_each_change(_positions)


def _positions(view: View) -> None:
    positions_switch(view)
    panels = _panels(view)
    if not panels:
        view.share()
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        show = choose("show", panels, next(iter(panels)), "Show", key="positions_show", label_visibility="collapsed")
        side = ask_side() if show not in (ATTENTION, PLACES) and view.is_pair else None
    with frame.picture():
        if show == ATTENTION:
            positions_off_panel(view)
        elif view.task is None:
            panel(found_panel if show == OWN else found_offsets_panel, view, side)
        elif show == OWN:
            own_positions_panel(view, side)
        elif show == OFFSETS:
            offsets_panel(view, side)
        elif show == PLACES:
            places_panel(view)
        else:
            position_kinds_panel(view, side)
    if view.task is not None or show == ATTENTION:
        position_notes(view, side, show)
    if view.task is None and OWN not in panels:
        st.info(
            "No vectors, angles or biases were found that tell this model where a token is.", icon=":material/info:"
        )
    view.share()


def _panels(view: View) -> dict[str, str]:
    """What there is to see of this model."""
    panels = {ATTENTION: "with and without"} if view.shape.can_drop_positions else {}
    if view.task is None:
        title = found_title(view)
        if not title:
            return panels
        own = {OWN: f"its own kind: {title}"}
        return {**panels, **own, **({} if title == TITLES["biased"] else {OFFSETS: "by how far apart"})}
    kind = view.config.position_kind
    own = f"its own kind: {kind.title}"
    if kind.acts_on != "nothing":
        if not kind.is_drawn_by_offset:
            panels[OWN] = own
        panels[OFFSETS] = own if kind.is_drawn_by_offset else "by how far apart"
    if view.shape.image and kind.acts_on == "stream":
        panels[PLACES] = "where a patch is"
    return {**panels, ALL_KINDS: "all kinds"}


page()
