"""Many models on the screen while they are trained: all curves as a fan, where each of them looks, and how they end."""

from __future__ import annotations

import streamlit as st

from pages.shared import run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.shared.layout import what_to_notice
from pages.train.state import share, show_complaint, train_state
from pages.train.sweep_controls import sweep_controls
from pages.train.sweep_files import sweep_files
from pages.train.sweep_members import chosen_member, members_table
from pages.train.sweep_notes import sweep_notes
from pages.train.sweep_pictures import fan, maps, outcome
from pages.train.sweep_words import far_along, sweep_words
from pages.train.timeline import GOES_ON
from xformer.errors import XformerError
from xformer.training.entry import Entry
from xformer.training.stored_sweep import StoredSweep

TICK = 0.8
"""Seconds between two looks at a sweep that goes on."""


def sweep_view(entry: Entry, who: str) -> None:
    """Show a sweep. While it goes on, only this part of the page runs again, and only while somebody looks."""
    moves = entry.state in GOES_ON
    st.fragment(run_every=TICK if moves else None, key="train_sweep")(_live)(entry.id, who, moves)


def _live(run: str, who: str, moves: bool) -> None:
    if train_state().run not in (run, None):
        st.rerun()  # another run is to be shown
    try:
        entry = run_store.entry(run)
        sweep = StoredSweep(run_store.store(), run, train_state().rows_of_sweep(run))
    except XformerError as error:
        st.error(escape_markdown(str(error)))
        return
    outcomes = sweep.outcomes()
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        sweep_controls(entry, who)
        st.progress(far_along(sweep, entry), text=escape_markdown(sweep_words(sweep, entry, outcomes, who)))
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(escape_markdown(entry.message or "It failed, and left no word why."), icon=":material/error:")
    with picture(), st.container(gap="xsmall", key="sweep_maps_place"):
        shown_maps = maps(sweep, chosen_member(sweep))
    left, right = st.columns([1, 1], gap="medium")
    with left, picture("fan"), st.container(gap="xsmall"):
        curves = fan(sweep)
    with right, picture("outcome"), st.container(gap="xsmall"):
        shown_outcome = outcome(sweep, outcomes, chosen_member(sweep))
    sweep_files(sweep, outcomes, [*shown_maps, curves, *shown_outcome])
    members_table(sweep, outcomes)
    what_to_notice(sweep_notes(sweep, outcomes))
    if moves != (entry.state in GOES_ON):
        st.rerun()
    share(run, None)
