"""A run on the screen: how far it is, its figures, its film and its curves; once a second while it goes on."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.components.training_player import resting
from pages.shared import run_store
from pages.shared.layout import what_to_notice
from pages.shared.literal import literal
from pages.train.afterwards import afterwards
from pages.train.charts import HEIGHT, TALL, code_and_csv, head_panel, metric_chart
from pages.train.controls import controls
from pages.train.film import Film, check_size, develop, moments, play
from pages.train.notes import notes
from pages.train.probe import ask_probe
from pages.train.state import far_along, looking_back, state_words
from pages.train.text import BITS, sample_panel, with_bits
from pages.train.tiles import tiles
from pages.train.visit import NEW, film_key, share, show_complaint, show_run
from xformer.errors import ConfigError, InputError, RunStoreError
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.repair import DAMAGED
from xformer.training.run_store import Entry
from xformer.viz.training import ACCURACY, GRADIENT, LOSS, RATE, metrics_frame

TICK = 0.8
"""Seconds between two looks at a run that goes on."""
GOES_ON = ("queued", "running", "paused")
HEADS, NORM = "Heads", "Gradient norm"
MORE = (HEADS, NORM, "Learning rate")


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
    moves = entry.state in GOES_ON or st.session_state.get("train_developing") == entry.id
    st.fragment(run_every=TICK if moves else None, key="train_live")(_live)(entry.id, who, moves)


def _cannot_be_read(why: str) -> None:
    """A damaged run in place of the picture, and the way on to another one."""
    st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
    st.error(f"This run cannot be read. {literal(why)}", icon=":material/broken_image:")
    st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")


def _live(run: str, who: str, moves: bool) -> None:
    try:
        entry = run_store.entry(run)
        settings = entry.settings()
        if entry.state == DAMAGED:
            raise RunStoreError(entry.message)
    except (RunStoreError, ConfigError) as error:
        st.error(literal(str(error)))
        return
    if st.session_state.get("train_run") not in (run, None):
        st.rerun()  # another run is to be shown
    steps, rows = settings.train.steps, _rows(entry)
    task = Task(settings.task)
    is_text = task.rule.is_open_ended
    rests_at = resting(film_key(run)).step
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        controls(entry, settings, who)
        # What an earlier step is looked at for is said of that step; only the sentence on the run goes on to its end.
        earlier = rests_at if rests_at is not None and rests_at < entry.step else None
        words = looking_back(earlier, rows, is_text) + state_words(entry, settings, who)
        st.progress(far_along(entry, settings), text=literal(words))
        tiles(entry, rows, earlier, is_text=is_text)
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(literal(entry.message or "It failed, and left no word why."), icon=":material/error:")
    frame = metrics_frame(rows)
    exact = [] if is_text else _curve(frame, "held_out_exact_match")

    left, right = st.columns([1.3, 1], gap="medium")
    with left, st.container(gap="small"):
        example = ask_probe(entry, task, settings.model.max_len)
        film = _film(entry, settings, task, example, rests_at)
        with st.container(key="film_place"):
            if film.frames:
                play(entry, task, example, film, exact)
            else:
                _nothing_yet(entry, settings)
    rest = resting(film_key(run))
    step = _shown(film, rest.step)
    marks = moments(film, exact)
    with right, st.container(gap="xsmall", key="train_curves"):
        if is_text:
            metric_chart(with_bits(frame), BITS, steps, step, marks, height=HEIGHT)
        else:
            metric_chart(frame, ACCURACY, steps, step, marks, height=HEIGHT)
        metric_chart(frame, LOSS, steps, step, marks, height=HEIGHT, switch=True)
    if is_text:
        with st.container(key="text_sample"):
            sample_panel(entry, settings.task.alphabet, example, step)
    afterwards(entry, settings, step, task.vocabulary.text(list(example.source)), who)
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="train_below"
    ):
        more = st.segmented_control(
            "More curves", MORE, default=MORE[0], required=True, key="train_more", persist_state="session",
            label_visibility="collapsed",
        )  # fmt: skip
        code_and_csv(entry, rows, film, example, step)
    if more == HEADS:
        head_panel(film, task, steps, step, marks)
    elif more == NORM:
        metric_chart(frame, GRADIENT, steps, step, {}, height=TALL)
    else:
        metric_chart(frame, RATE, steps, step, {}, height=TALL)
    what_to_notice(notes(entry, settings, task, film, frame))
    developing = bool(film.waiting)
    st.session_state["train_developing"] = run if developing else None
    if moves != (entry.state in GOES_ON or developing):
        st.rerun()
    share(run, rest.step)  # last: a rerun would throw away what is on its way to the address bar


def _film(entry: Entry, settings: Preset, task: Task, example: Example, rests_at: int | None) -> Film:
    """The film of that input; an empty one, and a sentence, where it would be too large."""
    try:
        check_size(settings.model, example)
    except InputError as error:
        st.error(literal(str(error)), icon=":material/block:")
        return Film((), (), 0)
    return develop(entry, task, example, rests_at)


def _shown(film: Film, rests_at: int | None) -> int | None:
    """The step of the frame that the player shows when it rests."""
    if not film.frames:
        return None
    at_or_before = [frame.step for frame in film.frames if rests_at is None or frame.step <= rests_at]
    return at_or_before[-1] if at_or_before else film.frames[0].step


def _nothing_yet(entry: Entry, settings: Preset) -> None:
    if not settings.train.snapshot_every:
        st.info("This run keeps no snapshots, so there is nothing to look at before it is finished.")
    elif entry.state == "queued":
        st.info("The first picture comes when it starts.", icon=":material/hourglass_top:")
    elif entry.state in GOES_ON:
        st.info("The first picture comes with its first snapshot, in a few seconds.", icon=":material/hourglass_top:")
    else:
        st.info("This run left no snapshot to look at; “New run” starts another.")


def _rows(entry: Entry) -> list[dict[str, Any]]:
    """The metrics of a run; what this visitor has seen already is not read again, unless the run went back behind it."""
    kept = st.session_state.get("train_rows")
    if kept is None or kept[0] != entry.id or (kept[1] and kept[1][-1].get("step", 0) > entry.step):
        kept = (entry.id, [])
    kept[1].extend(run_store.store().rows(entry.id, kept[1][-1]["step"] if kept[1] else -1))
    st.session_state["train_rows"] = kept
    return kept[1]


def _curve(frame: pd.DataFrame, column: str, most: int = 200) -> list[tuple[int, float]]:
    clean = frame[["step", column]].dropna()
    stride = max(1, -(-len(clean) // most))
    chosen = clean.iloc[sorted({*range(0, len(clean), stride), len(clean) - 1})] if len(clean) else clean
    return [(int(step), round(float(value), 4)) for step, value in chosen.itertuples(index=False, name=None)]
