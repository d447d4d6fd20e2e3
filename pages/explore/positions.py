"""Positions: how does the model know where a token is? Switch it off, look at its own kind, then at all kinds."""

from __future__ import annotations

import streamlit as st

from pages.shared.ask import ask_side
from pages.shared.panels.added_positions import added_positions_panel
from pages.shared.panels.inner_positions import inner_positions_panel
from pages.shared.panels.places import places_panel
from pages.shared.panels.position_kinds import NAMES, position_kinds_panel
from pages.shared.panels.position_notes import position_notes
from pages.shared.panels.positions_off import OFF, positions_off_panel
from pages.shared.session import open_page
from xformer.analysis.positions import ADDED


def page() -> None:
    view = open_page("Positions", "How does the model know where a token is?")
    kind = view.checkpoint.config.positions
    more = {"watch": positions_off_panel(view)}
    side = None
    if kind in ADDED and view.is_pair:
        side = more["side"] = ask_side()

    off = " (switched off just now)" if OFF in view.on else ""
    st.subheader(f"How this model does it: {NAMES[kind]}{off}", anchor=False)
    if kind in ADDED:
        waves = added_positions_panel(view, side)
        more["waves"] = "-".join(map(str, waves))
    else:
        inner_positions_panel(view)
    if view.task.rule.is_image:
        places_panel(view)
    position_kinds_panel(view, side)
    position_notes(view, side)
    view.share(**more)


page()
