"""A run on the screen: how far it is, its figures, its film and its curves; every second or so while it goes on."""

from __future__ import annotations

import streamlit as st

from pages.components.training_player import resting
from pages.shared import run_store
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.shared.layout import what_to_notice
from pages.train.charts import HEIGHT, TALL, code_and_files, head_panel, metric_chart
from pages.train.controls import controls
from pages.train.develop import GOES_ON, film_of, nothing_yet
from pages.train.metrics import rows_so_far, thinned_curve
from pages.train.notes import notes
from pages.train.player import files, moments, play
from pages.train.probe import ask_probe
from pages.train.progress import progress
from pages.train.run_actions import run_actions
from pages.train.state import NEW, film_key, share, show_complaint, show_run, train_state
from pages.train.text import sample_panel
from xformer import viz
from xformer.errors import ConfigError, RunStoreError
from xformer.tasks import Task
from xformer.training.entry import DAMAGED, Entry
from xformer.viz.training import metrics_frame

TICK = 1.2
"""Seconds between two looks at the pictures of a run that goes on."""
HEADS = "Heads"
MORE = {HEADS: "", "Gradient norm": "gradient", "Learning rate": "rate"}


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
    steps, rows = settings.train.steps, rows_so_far(entry)
    task = Task(settings.task)
    is_text = task.rule.is_open_ended
    rests_at = resting(film_key(run)).step
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        controls(entry, settings, who)
        progress(entry, settings, who, rests_at)
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(escape_markdown(entry.message or "It failed, and left no word why."), icon=":material/error:")
    frame = metrics_frame(rows)
    exact = [] if is_text else thinned_curve(frame, "held_out_exact_match")

    left, right = st.columns([1.3, 1], gap="medium")
    with left, st.container(gap="small"):
        example = ask_probe(entry, task, settings.model.max_len)
        film = film_of(entry, settings, task, example, rests_at)
        with picture(), st.container(key="film_place"):
            if film.frames:
                play(entry, task, example, film, exact)
            else:
                nothing_yet(entry, settings)
    rest = resting(film_key(run))
    step = film.step_at(rest.step)
    marks = moments(film, exact)
    with right, picture("curves"), st.container(gap="xsmall", key="train_curves"):
        look = {"steps": steps, "shown": step, "marks": marks, "height": HEIGHT}
        calls = [
            metric_chart(Call(viz.metric_curves, (frame,), {"what": what, **look}), switch=what == "loss")
            for what in ("bits" if is_text else "accuracy", "loss")
        ]
    if is_text:
        with st.container(key="text_sample"):
            sample_panel(entry, settings.task.alphabet, example, step)
    run_actions(entry, settings, step, task.vocabulary.text(list(example.source)), who)
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="train_below"
    ):
        more = st.segmented_control(
            "More curves", list(MORE), default=HEADS, required=True, key="train_more", persist_state="session",
            label_visibility="collapsed",
        )  # fmt: skip
        below = Call(viz.metric_curves, (frame,), {**look, "what": MORE[more], "marks": None, "height": TALL})
        offered = files(entry, task, example, film, exact) if film.frames else None
        code_and_files(entry, calls if more == HEADS else [*calls, below], film, example, step, offered)
    if more == HEADS:
        head_panel(film, task, steps, step, marks)
    else:
        metric_chart(below)
    what_to_notice(notes(entry, settings, task, film, frame))
    developing = bool(film.waiting)
    train_state().developing = run if developing else None
    if moves != (entry.state in GOES_ON or developing):
        st.rerun()
    share(run, rest.step)  # last: a rerun would throw away what is on its way to the address bar
