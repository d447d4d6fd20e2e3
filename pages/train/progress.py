"""How far a run is, and its figures: looked at more often than its pictures, as it costs the browser a fraction of theirs."""

from __future__ import annotations

import streamlit as st

from pages.shared import run_store
from pages.shared.escape_markdown import escape_markdown
from pages.train.develop import GOES_ON
from pages.train.state import rows_so_far
from pages.train.status import far_along, looking_back, state_words
from pages.train.tiles import tiles
from xformer.errors import RunStoreError
from xformer.presets import Preset
from xformer.tasks.rules import RULES
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_steps

TICK = 0.4
"""Seconds between two looks while a run is young, which is when its figures change most."""
LATER = 1.2
"""And later, or while it is paused: only somebody else could have it go on."""
YOUNG = 30.0
"""So many seconds of training long."""


def progress(entry: Entry, settings: Preset, who: str, rests_at: int | None) -> None:
    """Draw the bar, the sentence on it and the figures; a fragment of its own while the run goes on.

    `rests_at` is the step where the player rests: what an earlier one is looked at for is said of that step.
    """
    tick = TICK if entry.seconds < YOUNG and entry.state != "paused" else LATER
    fragment = st.fragment(run_every=tick if entry.state in GOES_ON else None, key="train_progress")
    fragment(_progress)(entry.id, settings, who, rests_at, entry.state, _has_picture(entry.id))


def _progress(run: str, settings: Preset, who: str, rests_at: int | None, drawn: str, has_picture: bool) -> None:
    try:
        entry = run_store.entry(run)
    except RunStoreError:  # the whole of the page will say so
        return
    if entry.state != drawn or has_picture != _has_picture(run):  # other buttons, or the first picture: at once
        st.rerun()
    is_text = RULES[settings.task.name].is_open_ended
    rows = rows_so_far(entry)
    earlier = rests_at if rests_at is not None and rests_at < entry.step else None
    words = looking_back(earlier, rows, is_text) + state_words(entry, settings, who)
    st.progress(far_along(entry, settings), text=escape_markdown(words))
    tiles(entry, rows, earlier, is_text=is_text)


def _has_picture(run: str) -> bool:
    return bool(snapshot_steps(run_store.store().folder_of(run)))
