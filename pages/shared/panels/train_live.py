"""A run on the screen: how far it is, its figures, its film and its curves; once a second while it goes on."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import desk
from pages.shared.components.training_player import resting
from pages.shared.layout import what_to_notice
from pages.shared.literal import literal
from pages.shared.panels.train_afterwards import afterwards
from pages.shared.panels.train_charts import HEIGHT, code_and_csv, head_panel, metric_chart
from pages.shared.panels.train_controls import controls
from pages.shared.panels.train_film import Film, develop, moments, play
from pages.shared.panels.train_notes import notes
from pages.shared.panels.train_probe import ask_probe
from pages.shared.panels.train_state import state_words
from pages.shared.panels.train_text import BITS, sample_panel, with_bits
from pages.shared.panels.train_visit import film_key, share, show_complaint
from xformer.errors import BookError, ConfigError
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training.book import Entry
from xformer.viz.training import ACCURACY, GRADIENT, LOSS, RATE, metrics_frame

TICK = 0.8
"""Seconds between two looks at a run that goes on."""
GOES_ON = ("queued", "running", "paused")


def run_view(entry: Entry, who: str) -> None:
    """Show a run. While it goes on, only this part of the page runs again, and only while somebody looks."""
    try:
        settings = entry.settings()
        Task(settings.task).check_fits(settings.model)
    except ConfigError as error:
        st.error(f"The settings of this run cannot be read. {error}")
        return
    # Switched off where nothing moves; a film that is not complete yet is looked at a few snapshots at a time.
    moves = entry.state in GOES_ON or st.session_state.get("train_developing") == entry.id
    st.fragment(run_every=TICK if moves else None, key="train_live")(_live)(entry.id, who, moves)


def _live(run: str, who: str, moves: bool) -> None:
    try:
        entry = desk.book().entry(run)
        settings = entry.settings()
    except (BookError, ConfigError) as error:
        st.error(str(error))
        return
    if st.session_state.get("train_run") not in (run, None):
        st.rerun()  # another run is to be shown
    steps, rows = settings.train.steps, _rows(entry)
    with st.container(gap="xsmall", key="run_head"):
        show_complaint()
        controls(entry, settings, who)
        st.progress(min(1.0, entry.step / steps), text=literal(state_words(entry, settings, who)))
        goes_on = Task(settings.task).rule.goes_on
        _tiles(entry, rows, goes_on)
        with st.container(key="run_trouble"):
            if entry.state == "failed":
                st.error(literal(entry.message or "It failed, and left no word why."), icon=":material/error:")
    frame = metrics_frame(rows)
    exact = _curve(frame, "held_out_exact_match")

    left, right = st.columns([1.45, 1], gap="medium")
    task = Task(settings.task)
    with left, st.container(gap="small"):
        example = ask_probe(entry, task, settings.model.max_len)
        film = develop(entry, task, example, resting(film_key(run)).step)
        with st.container(key="film_place"):
            if film.frames:
                play(entry, task, example, film, [] if goes_on else exact)
            else:
                _nothing_yet(entry, settings)
    rest = resting(film_key(run))
    step = _shown(film, rest.step)
    with right:
        marks = moments(film, exact)
        if goes_on:
            metric_chart(with_bits(frame), BITS, steps, step, marks, height=250)
        else:
            metric_chart(frame, ACCURACY, steps, step, marks, height=250)
        metric_chart(frame, LOSS, steps, step, marks, height=250, switch=True)
    if goes_on:
        with st.container(key="text_sample"):
            sample_panel(entry, settings.task.alphabet, example, step)
    afterwards(entry, settings, step, task.vocabulary.text(list(example.source)), who)
    first, second, third = st.columns(3)
    with first:
        head_panel(film, task, steps, step, marks)
    with second:
        metric_chart(frame, GRADIENT, steps, step, {}, height=HEIGHT)
    with third:
        metric_chart(frame, RATE, steps, step, {}, height=HEIGHT)
    code_and_csv(entry, rows, film, example, step)
    what_to_notice(notes(entry, settings, task, film, frame))
    developing = bool(film.waiting)
    st.session_state["train_developing"] = run if developing else None
    if moves != (entry.state in GOES_ON or developing):
        st.rerun()
    share(run, rest.step)  # last: a rerun would throw away what is on its way to the address bar


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
    kept[1].extend(desk.book().rows(entry.id, kept[1][-1]["step"] if kept[1] else -1))
    st.session_state["train_rows"] = kept
    return kept[1]


def _curve(frame: pd.DataFrame, column: str, most: int = 200) -> list[tuple[int, float]]:
    clean = frame[["step", column]].dropna()
    stride = max(1, -(-len(clean) // most))
    chosen = clean.iloc[sorted({*range(0, len(clean), stride), len(clean) - 1})] if len(clean) else clean
    return [(int(step), round(float(value), 4)) for step, value in chosen.itertuples(index=False, name=None)]


def _tiles(entry: Entry, rows: list[dict[str, Any]], goes_on: bool) -> None:
    """The figures of the latest step and of the latest report, as numbers that stay where they are."""
    last = rows[-1] if rows else {}
    live = entry.live
    loss = last.get("held_out_loss")
    bits = loss / math.log(2) if goes_on and isinstance(loss, float) else None
    tiles = (
        ("loss", _number(live.get("loss", last.get("loss")), ".4f")),
        ("held-out loss", _number(last.get("held_out_loss"), ".4f")),
        ("bits per character", _number(bits, ".3f"))
        if goes_on
        else ("exact match", _number(last.get("held_out_exact_match"), ".1%")),
        ("tokens right", _number(last.get("held_out_token_accuracy"), ".1%")),
        ("gradient", _number(live.get("gradient_norm", last.get("gradient_norm")), ".3f")),
        ("learning rate", _number(live.get("learning_rate", last.get("learning_rate")), ".2e")),
        ("steps/s", _number(live.get("steps_per_second") if entry.state == "running" else None, ",.0f")),
        ("tokens/s", _number(last.get("tokens_per_second") or None, ",.0f")),
    )
    cells = "".join(f"<div><span>{words}</span><b>{number}</b></div>" for words, number in tiles)
    st.html(f"{_TILES_CSS}<div class='train-tiles'>{cells}</div>")


_TILES_CSS = """<style>
.train-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(94px, 1fr)); gap: 6px; }
.train-tiles div {
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 10px; padding: 3px 8px 4px; }
.train-tiles span { display: block; font-size: 0.75rem; opacity: 0.72; white-space: nowrap; }
.train-tiles b { font-size: 1.08rem; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
</style>"""


def _number(value: Any, look: str) -> str:
    """A number as it is shown; a dash where there is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format(float(value), look) if is_number else "–"
