"""Positions: how does the model know where a token is? Switch them off, look at its own kind, then at all kinds."""

from __future__ import annotations

import streamlit as st

from pages.shared.ask import ask_side, choose
from pages.shared.panels.own_positions import offsets_panel, own_positions_panel
from pages.shared.panels.places import places_panel
from pages.shared.panels.position_kinds import KINDS, position_kinds_panel
from pages.shared.panels.position_notes import position_notes
from pages.shared.panels.positions_off import positions_off_panel, positions_switch
from pages.shared.session import open_page
from pages.shared.view import View
from xformer.analysis.positions import ADDED

ATTENTION, OWN, OFFSETS, PLACES, ALL_KINDS = "attention", "own", "offsets", "places", "kinds"


def page() -> None:
    view = open_page("Positions", "How does the model know where a token is?")
    positions_switch(view)
    panels = _panels(view)
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        show = choose("show", panels, next(iter(panels)), "Show", key="positions_show", label_visibility="collapsed")
        side = ask_side() if show not in (ATTENTION, PLACES) and view.is_pair else None
    if show == ATTENTION:
        positions_off_panel(view)
    elif show == OWN:
        own_positions_panel(view, side)
    elif show == OFFSETS:
        offsets_panel(view, side)
    elif show == PLACES:
        places_panel(view)
    else:
        position_kinds_panel(view, side)
    position_notes(view, side, show)
    view.share()


def _panels(view: View) -> dict[str, str]:
    """What there is to see of this model."""
    kind = view.checkpoint.config.positions
    panels = {}
    if kind != "none":
        panels[ATTENTION] = "with and without"
        if kind != "alibi":
            panels[OWN] = f"its own kind: {KINDS[kind].name}"
        panels[OFFSETS] = "by how far apart" if kind != "alibi" else f"its own kind: {KINDS[kind].name}"
    if view.task.rule.is_image and kind in ADDED:
        panels[PLACES] = "where a patch is"
    return {**panels, ALL_KINDS: "six ways"}


page()
