"""The snapshots of a run looked at, a few at each drawing of the screen, until the film is complete."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from pages.shared import run_store
from pages.shared.byte_cache import budget, shared
from pages.shared.escape_markdown import escape_markdown
from pages.train.film import Film, album_key, album_of, frame_cells, frame_of
from xformer import load
from xformer.analysis.training_runs import thinned
from xformer.config import ModelConfig
from xformer.errors import InputError, XformerError
from xformer.memory import check_fits
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_file, snapshot_steps
from xformer.viz.timeline import layers_of

MOST_FRAMES = 120
MOST_BYTES = 1_200_000
"""Of all planes of a film."""
MOST_CELLS = 4_000_000
"""Of one frame, which a browser is sent as a byte each."""
BUDGET = 0.25
"""Seconds that one run of the page spends on looking at snapshots; the rest follows with the next."""


GOES_ON = ("queued", "running", "paused")
"""The states in which more is to come."""


def film_of(entry: Entry, settings: Preset, task: Task, example: Example, wanted: int | None) -> Film:
    """The film of that input; an empty one, and a sentence, where it would be too large."""
    try:
        check_size(settings.model, example)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/block:")
        return Film((), (), 0)
    return develop(entry, task, example, wanted)


def check_size(config: ModelConfig, example: Example) -> None:
    """Raise `InputError` where a film of that input is more than may be looked at, or than a browser can be sent."""
    source, target = example.stream.shape[1], None if example.target is None else example.target.shape[1]
    check_fits(config, source, target, allowed_bytes=budget())
    heads, tokens = config.n_layers * config.n_heads, max(source, target or 0)
    if heads * tokens**2 > MOST_CELLS:
        raise InputError(
            f"A film of {heads:,} heads over {tokens:,} tokens has {heads * tokens**2:,} cells a frame, and at most "
            f"{MOST_CELLS:,} can be shown; type a shorter input."
        )


def develop(entry: Entry, task: Task, example: Example, wanted: int | None) -> Film:
    """Look at the snapshots of a run that have not been looked at yet, as many as the budget allows.

    The step that is wanted comes first, then the others: coarse, then fine.
    """
    folder = run_store.store().folder_of(entry.id)
    album = album_of(entry.id, example.source)
    steps = snapshot_steps(folder)
    cells = sum(frame_cells(frame) for frame in list(album.frames.values())[:1])
    steps = thinned(steps, min(MOST_FRAMES, max(2, MOST_BYTES // cells)) if cells else MOST_FRAMES)
    begun, waiting = time.perf_counter(), 0
    keys: dict[int, tuple[int, int]] = {}
    for step in _coarse_to_fine(steps, wanted):
        try:
            key = (step, snapshot_file(folder, step).stat().st_mtime_ns)
        except OSError:  # a run that goes on from an earlier step has just removed it
            continue
        keys[step] = key
        if key in album.frames:
            continue
        if time.perf_counter() - begun > BUDGET:
            waiting += 1
            continue
        try:
            checkpoint = load(snapshot_file(folder, step))
        except XformerError:
            continue
        album.frames[key] = frame_of(checkpoint.model, task, example, step)
        shared.put(album_key(entry.id, example.source), album)  # with its new size
    frames = tuple(album.frames[keys[step]] for step in steps if step in keys and keys[step] in album.frames)
    return Film(frames, layers_of(task, example, frames), waiting)


def nothing_yet(entry: Entry, settings: Preset) -> None:
    """Why there is no picture, in place of it."""
    if not settings.train.snapshot_every:
        st.info("This run keeps no snapshots, so there is nothing to look at before it is finished.")
    elif entry.state == "queued":
        st.info("The first picture comes when it starts.", icon=":material/hourglass_top:")
    elif entry.state in GOES_ON:
        st.info("The first picture comes with its first snapshot, in a few seconds.", icon=":material/hourglass_top:")
    else:
        st.info("This run left no snapshot to look at; “New run” starts another.")


def _coarse_to_fine(steps: Sequence[int], wanted: int | None) -> list[int]:
    order = [step for step in steps if step <= (wanted or 0)][-1:] if wanted is not None else []
    order += steps[-1:]
    for stride in (16, 8, 4, 2, 1):
        order += steps[::stride]
    return list(dict.fromkeys(order))
