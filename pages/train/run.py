"""A run on the screen: how far it is, its figures, its film and its curves; every second or so while it goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st
import torch

from pages.components.training_player import resting
from pages.shared import run_commands, run_store, screens
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.shared.layout import what_to_notice
from pages.shared.session import choose_model
from pages.shared.widgets import typed
from pages.train.form import TRAIN, TRAINING, ask, is_filled, put
from pages.train.form import settings as form_settings
from pages.train.state import (
    NEW,
    film_key,
    rows_so_far,
    share,
    show_complaint,
    show_run,
    start_once,
    thinned_curve,
    train_state,
)
from pages.train.status import controls, progress
from pages.train.timeline import (
    GOES_ON,
    HEIGHT,
    TALL,
    Film,
    code_and_files,
    files,
    film_of,
    head_panel,
    metric_chart,
    moments,
    notes,
    nothing_yet,
    play,
)
from xformer import load, viz
from xformer.checkpoints import FILE, to_bytes
from xformer.decoding import Sampling, continue_text
from xformer.errors import ConfigError, InputError, RunStoreError, XformerError
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import DAMAGED, ELSEWHERE, Entry
from xformer.training.snapshots import snapshot_file
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


HEADS = "Heads"

MORE = {HEADS: "", "Gradient norm": "gradient", "Learning rate": "rate"}


@dataclass(frozen=True)
class Shown:
    """A run as it is shown: its film of one input, and its metrics so far."""

    entry: Entry
    settings: Preset
    task: Task
    example: Example
    film: Film
    frame: pd.DataFrame
    exact: Sequence[tuple[int, float]]
    """Exact matches by step; none of a text."""

    @property
    def step(self) -> int | None:
        """The step where the player rests."""
        return self.film.step_at(resting(film_key(self.entry.id)).step)


def curves(shown: Shown) -> list[Call]:
    """Draw the curves beside the player; what comes back are the calls they have made."""
    look = {
        "steps": shown.settings.train.steps,
        "shown": shown.step,
        "marks": moments(shown.film, shown.exact),
        "height": HEIGHT,
    }
    with picture("curves"), st.container(gap="xsmall", key="train_curves"):
        return [
            metric_chart(Call(viz.metric_curves, (shown.frame,), {"what": what, **look}), switch=what == "loss")
            for what in ("bits" if shown.task.rule.is_open_ended else "accuracy", "loss")
        ]


def below_player(shown: Shown, beside: list[Call], who: str) -> None:
    """Draw the rest of the page."""
    entry, settings, task, example, film = shown.entry, shown.settings, shown.task, shown.example, shown.film
    step, steps = shown.step, settings.train.steps
    if task.rule.is_open_ended:
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
        look = {"steps": steps, "shown": step, "marks": None, "height": TALL}
        below = Call(viz.metric_curves, (shown.frame,), {**look, "what": MORE[more]})
        offered = files(entry, task, example, film, shown.exact) if film.frames else None
        code_and_files(entry, beside if more == HEADS else [*beside, below], film, example, step, offered)
    if more == HEADS:
        head_panel(film, task, steps, step, moments(film, shown.exact))
    else:
        metric_chart(below)
    what_to_notice(notes(entry, settings, task, film, shown.frame))


def ask_probe(entry: Entry, task: Task, max_len: int) -> Example:
    """The input that is followed through the run, as the visitor types it; the last good one where it cannot be read."""
    begin_key, good_key, version_key = (f"probe_{entry.id}:{what}" for what in ("begin", "good", "version"))
    usual = task.vocabulary.text(list(task.probe(entry.train.get("seed", 0)).source))
    begin = st.session_state.setdefault(begin_key, usual)
    version = st.session_state.setdefault(version_key, 0)

    def draw() -> None:
        st.session_state[begin_key] = task.vocabulary.text(task.draw(random.getrandbits(32)))
        st.session_state[version_key] = version + 1

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="probe_row"):
        # A default, not an entry of the session: this is drawn anew every second, and must not overwrite what is being typed.
        text = st.text_input(
            "Watch it learn on",
            begin,
            key=f"probe_{entry.id}_{version}",
            persist_state="session",
            label_visibility="collapsed",
            icon=":material/visibility:",
            placeholder=f"Watch it learn on … {task.rule.typed}",
        )
        st.button(
            "Random", icon=":material/casino:", on_click=draw, key="probe_random", help="Another input to watch it on."
        )
    try:
        example = task.example(task.vocabulary.read(typed(text, 400)), max_len=max_len)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return task.example(task.vocabulary.read(st.session_state.get(good_key, usual)))
    st.session_state[good_key] = text
    return example


def run_actions(entry: Entry, settings: Preset, step: int | None, probe: str, who: str) -> None:
    """What can be done with the step that is shown: open it elsewhere, fork it, train the same again, download it."""
    with st.container(horizontal=True, gap="small", key="afterwards"):
        if step is not None:
            with (
                st.popover(f"Open step {step:,} on …", icon=":material/open_in_new:", key="open_on"),
                st.container(gap=None),
            ):
                for words, page in screens.of_a_model().items():
                    if st.button(words, type="tertiary", key=f"open_{words}", width="stretch"):
                        choose_model(f"{entry.id}@{step}")
                        st.session_state["input"] = probe
                        st.switch_page(page)
            with st.popover(f"Fork from step {step:,}", icon=":material/fork_right:", key="fork"):
                _fork(entry, settings, step, who)
        if not entry.is_active and entry.state != "queued":
            st.button(
                "Train the same again",
                icon=":material/replay:",
                on_click=_again,
                args=(entry, train_state().next_ticket()),
                disabled=not who or entry.wanted == ELSEWHERE,
                help="The same settings and the same seed: on a CPU the same run, bit for bit.",
                key="run_again",
            )
        folder = run_store.store().folder_of(entry.id)
        if (folder / FILE).exists():
            st.download_button(
                "Model",
                lambda: to_bytes(load(folder)),
                f"{entry.id}.safetensors",
                "application/octet-stream",
                icon=":material/download:",
                on_click="ignore",
                help="Weights, settings, figures and curve in one safetensors file.",
                key="run_model",
            )


def _fork(entry: Entry, settings: Preset, step: int, who: str) -> None:
    form = f"fork_{entry.id}"
    if not is_filled(form):
        put(settings, form, TRAINING)
    st.caption(
        f"A new run that begins with the weights of step {step:,}; its optimiser and data begin anew. "
        "The model stays, its training can be another."
    )
    ask(TRAIN, form)
    problem = None
    try:
        changed = form_settings(settings, form, TRAINING)
    except ConfigError as error:
        changed, problem = settings, str(error)
        st.error(escape_markdown(problem), icon=":material/edit:")
    ticket = train_state().next_ticket()

    def fork() -> None:
        name = f"{entry.name}, from step {step:,}"[:80]
        start_once(ticket, lambda: run_commands.fork(entry.id, step, changed, name))

    st.button(
        "Start the fork", type="primary", on_click=fork, disabled=problem is not None or not who, key="fork_start"
    )


def _again(entry: Entry, ticket: int) -> None:
    start_once(ticket, lambda: run_commands.again(entry.id, f"{entry.name} again"[:80]))


LENGTH, TEMPERATURE = 120, 0.8


def sample_panel(entry: Entry, alphabet: str, example: Example, step: int | None) -> None:
    """What the snapshot of that step goes on with after the probe: always the same draw, so that steps can be compared."""
    if step is None:
        return
    prompt = tuple((example.stream if example.target is None else example.tokens)[0].tolist())
    try:
        written = snapshot_file(run_store.store().folder_of(entry.id), step).stat().st_mtime_ns
        said = _said(entry.id, step, written, prompt)
    except (XformerError, OSError):  # removed just now, by a run that goes on from an earlier step
        return
    text = "".join(alphabet[token - 1] for token in (*prompt, *said) if 1 <= token <= len(alphabet))
    st.caption(f"At step {step:,} it goes on like this (temperature {TEMPERATURE}, always the same draw):")
    st.code(text, language=None, wrap_lines=True)


@st.cache_data(max_entries=256, show_spinner=False)
def _said(run: str, step: int, written: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    model = load(snapshot_file(run_store.store().folder_of(run), step)).model
    draw = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=TEMPERATURE)
    return tuple(one.token for one in continue_text(model, prompt, LENGTH, sampling=sampling, generator=draw))
