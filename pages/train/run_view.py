"""A run on the screen: how far it is, its figures, its film and its curves; every second or so while it goes on."""

from __future__ import annotations

import time

import streamlit as st

from pages.components.training_player import resting
from pages.shared import run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.train.beside_player import Shown, below_player, curves
from pages.train.probe import ask_probe
from pages.train.state import NEW, film_key, rows_so_far, share, show_complaint, show_run, thinned_curve, train_state
from pages.train.status import controls, progress
from pages.train.timeline import GOES_ON, film_of, nothing_yet, play
from xformer.errors import ConfigError, RunStoreError
from xformer.tasks import Task
from xformer.training.entry import DAMAGED, Entry
from xformer.viz.training_curves import metrics_frame

TICK = 1.2
"""Seconds between two looks at the pictures of a run that goes on."""
FIRST_SECONDS = 3.0
"""For so long after somebody pressed Start the figures and the film have the machine to themselves: a browser that has drawn
no curve yet loads for a second what draws them, and on two cores that second would be the training's."""


def run_view(entry: Entry, who: str) -> None:
    """Show a run. While it goes on, only this part of the page runs again, and only while somebody looks."""
    if entry.state == DAMAGED:
        _cannot_be_read(entry.message)
        return
    try:
        settings = entry.settings()
        Task(settings.task).check_fits(settings.model)
    except ConfigError as error:
        _cannot_be_read(str(error))
        return
    # Switched off where nothing moves; a film that is not complete yet is looked at a few snapshots at a time.
    moves = entry.state in GOES_ON or train_state().developing == entry.id
    st.fragment(run_every=TICK if moves else None, key="train_live")(_live)(entry.id, who, moves)


def _cannot_be_read(why: str) -> None:
    """A damaged run in place of the picture, and the way on to another one."""
    st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
    st.error(f"This run cannot be read. {escape_markdown(why)}", icon=":material/broken_image:")
    st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")


def _is_settled(entry: Entry) -> bool:
    """Whether there is time for more than the figures and the film of a run."""
    return entry.state not in GOES_ON or time.time() - entry.created >= FIRST_SECONDS


def _live(run: str, who: str, moves: bool) -> None:
    try:
        entry = run_store.entry(run)
        settings = entry.settings()
        if entry.state == DAMAGED:
            raise RunStoreError(entry.message)
    except (RunStoreError, ConfigError) as error:
        st.error(escape_markdown(str(error)))
        return
    if train_state().run not in (run, None):
        st.rerun()  # another run is to be shown
    task = Task(settings.task)
    rests_at = resting(film_key(run)).step
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        controls(entry, settings, who)
        progress(entry, settings, who, rests_at)
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(escape_markdown(entry.message or "It failed, and left no word why."), icon=":material/error:")
    frame = metrics_frame(rows_so_far(entry))
    exact = [] if task.rule.is_open_ended else thinned_curve(frame, "held_out_exact_match")

    left, right = st.columns([1.3, 1], gap="medium")
    with left, st.container(gap="small"):
        example = ask_probe(entry, task, settings.model.max_len)
        film = film_of(entry, settings, task, example, rests_at)
        with picture(), st.container(key="film_place"):
            if film.frames:
                play(entry, task, example, film, exact)
            else:
                nothing_yet(entry, settings)
    if _is_settled(entry):
        shown = Shown(entry, settings, task, example, film, frame, exact)
        with right:
            beside = curves(shown)
        below_player(shown, beside, who)
    else:
        right.caption("The curves follow in a moment.")
    developing = bool(film.waiting)
    train_state().developing = run if developing else None
    if moves != (entry.state in GOES_ON or developing):
        st.rerun()
    share(run, resting(film_key(run)).step)  # last: a rerun would throw away what is on its way to the address bar
