"""The view of a run: progress, timeline, curves, and what can be done with a step."""

from __future__ import annotations

import random
import time
from typing import Any

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
    player_key,
    rows_so_far,
    share,
    show_problem,
    show_run,
    start_once,
    thinned_curve,
    train_state,
)
from pages.train.status import again_button, controls, failure, progress
from pages.train.timeline import (
    ACTIVE,
    HEIGHT,
    TALL,
    RunView,
    code_and_files,
    head_panel,
    metric_chart,
    notes,
    player,
    timeline_of,
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

MORE = {"heads": "Heads", "gradient": "Gradient norm", "rate": "Learning rate"}
"""The charts below the player."""
TICK = 1.2
"""Seconds between two updates of the pictures of an active run."""
FIRST_SECONDS = 3.0
"""For this long after Start only the figures and the player are drawn: loading the chart code would slow down the training."""
SAMPLE_LENGTH, TEMPERATURE = 120, 0.8


def run_view(entry: Entry, who: str) -> None:
    """Show a run, in a fragment that updates while the run is active."""
    try:
        if entry.state == DAMAGED:
            raise RunStoreError(entry.message)
        settings = entry.settings()
        Task(settings.task).check_fits(settings.model)
    except (RunStoreError, ConfigError) as error:
        st.title("Train :small[:gray[Can I watch it learn?]]", anchor=False)
        st.error(f"This run cannot be read. {escape_markdown(str(error))}", icon=":material/broken_image:")
        st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")
        return
    moves = entry.state in ACTIVE or train_state().evaluating == entry.id
    st.fragment(run_every=TICK if moves else None, key="train_live")(_live)(entry.id, who, moves)


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
        st.rerun()  # the visitor has chosen another run
    task, rests_at = Task(settings.task), resting(player_key(run)).step
    with st.container(gap="xsmall", key="run_head"):
        show_problem()
        controls(entry, settings, who)
        progress(entry, settings, who, rests_at)
        failure(entry)
    frame = metrics_frame(rows_so_far(entry))
    exact = [] if task.rule.is_open_ended else thinned_curve(frame, "held_out_exact_match")
    left, right = st.columns([1.3, 1], gap="medium")
    with left, st.container(gap="small"):
        example = _ask_probe(entry, task, settings.model.max_len)
        timeline = timeline_of(entry, settings, task, example, rests_at)
        view = RunView(entry, settings, task, example, timeline, frame, exact)
        with picture(), st.container(key="film_place"):
            player(view)
    if entry.state not in ACTIVE or time.time() - entry.created >= FIRST_SECONDS:
        with right:
            calls = _curves(view)
        _below_player(view, calls, who)
    else:
        right.caption("The curves follow in a moment.")
    is_evaluating = bool(timeline.waiting)
    train_state().evaluating = run if is_evaluating else None
    if moves != (entry.state in ACTIVE or is_evaluating):
        st.rerun()
    share(run, resting(player_key(run)).step)  # last: a rerun would drop what is sent to the address bar


def _ask_probe(entry: Entry, task: Task, max_len: int) -> Example:
    """Ask for the input of the timeline; an unreadable input is replaced by the last readable one."""
    begin_key, good_key, version_key = (f"probe_{entry.id}:{what}" for what in ("begin", "good", "version"))
    default = task.vocabulary.text(list(task.probe(entry.train.get("seed", 0)).source))
    begin = st.session_state.setdefault(begin_key, default)
    version = st.session_state.setdefault(version_key, 0)

    def draw() -> None:
        st.session_state[begin_key] = task.vocabulary.text(task.draw(random.getrandbits(32)))
        st.session_state[version_key] = version + 1

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="probe_row"):
        # A default, not a session value: an update must not overwrite what the visitor is typing.
        text = st.text_input(
            "Watch it learn on",
            begin,
            key=f"probe_{entry.id}_{version}",
            persist_state="session",
            label_visibility="collapsed",
            icon=":material/visibility:",
            placeholder=f"Watch it learn on … {task.rule.typed}",
        )
        st.button("Random", icon=":material/casino:", on_click=draw, key="probe_random", help="Another input")
    try:
        example = task.example(task.vocabulary.read(typed(text, 400)), max_len=max_len)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return task.example(task.vocabulary.read(st.session_state.get(good_key, default)))
    st.session_state[good_key] = text
    return example


def _curves(view: RunView) -> list[Call]:
    """Draw the curves beside the player; returns their calls."""
    look = {"steps": view.settings.train.steps, "shown": view.step, "marks": view.marks, "height": HEIGHT}
    measures = ("bits" if view.task.rule.is_open_ended else "accuracy", "loss")
    with picture("curves"), st.container(gap="xsmall", key="train_curves"):
        return [
            metric_chart(Call(viz.metric_curves, (view.frame,), {"what": what, **look}), switch=what == "loss")
            for what in measures
        ]


def _below_player(view: RunView, calls: list[Call], who: str) -> None:
    """Draw everything below the player."""
    if view.task.rule.is_open_ended:
        with st.container(key="text_sample"):
            _sample(view)
    _actions(view, who)
    look: dict[str, Any] = {"horizontal": True, "horizontal_alignment": "distribute", "vertical_alignment": "center"}
    with st.container(key="train_below", **look):
        more = st.segmented_control(
            "More curves", list(MORE), format_func=MORE.__getitem__, default="heads", required=True, key="train_more",
            persist_state="session", label_visibility="collapsed",
        )  # fmt: skip
        options = {"what": more, "steps": view.settings.train.steps, "shown": view.step, "marks": None, "height": TALL}
        below = Call(viz.metric_curves, (view.frame,), options)
        code_and_files(view, calls if more == "heads" else [*calls, below])
    if more == "heads":
        head_panel(view)
    else:
        metric_chart(below)
    what_to_notice(notes(view))


def _actions(view: RunView, who: str) -> None:
    """Offer what can be done with the run and the shown step: open, fork, train again, download."""
    entry, step = view.entry, view.step
    with st.container(horizontal=True, gap="small", key="afterwards"):
        if step is not None:
            opened = st.popover(f"Open step {step:,} on …", icon=":material/open_in_new:", key="open_on")
            with opened, st.container(gap=None):
                for words, page in screens.of_a_model().items():
                    if st.button(words, type="tertiary", key=f"open_{words}", width="stretch"):
                        choose_model(f"{entry.id}@{step}")
                        st.session_state["input"] = view.task.vocabulary.text(list(view.example.source))
                        st.switch_page(page)
            with st.popover(f"Fork from step {step:,}", icon=":material/fork_right:", key="fork"):
                _fork(entry, view.settings, step, who)
        if not entry.is_active and entry.state != "queued":
            again_button(entry, is_possible=bool(who) and entry.wanted != ELSEWHERE)
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
        f"A new run that starts with the weights of step {step:,}, with a new optimiser and new data. "
        "The model stays the same; its training can differ."
    )
    ask(TRAIN, form)
    changed = None
    try:
        changed = form_settings(settings, form, TRAINING)
    except ConfigError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
    ticket = train_state().next_ticket()

    def fork() -> None:
        name = f"{entry.name}, from step {step:,}"[:80]
        start_once(ticket, lambda: run_commands.fork(entry.id, step, changed or settings, name))

    is_disabled = changed is None or not who
    st.button("Start the fork", type="primary", on_click=fork, disabled=is_disabled, key="fork_start")


def _sample(view: RunView) -> None:
    """The continuation of the input by the shown snapshot, with a fixed seed so that steps can be compared."""
    run, step, alphabet, example = view.entry.id, view.step, view.settings.task.alphabet, view.example
    if step is None:
        return
    prompt = tuple((example.stream if example.target is None else example.tokens)[0].tolist())
    try:
        written = snapshot_file(run_store.store().folder_of(run), step).stat().st_mtime_ns
        tokens = _continuation(run, step, written, prompt)
    except (XformerError, OSError):  # removed by a run that was resumed from an earlier step
        return
    text = "".join(alphabet[token - 1] for token in (*prompt, *tokens) if 1 <= token <= len(alphabet))
    st.caption(f"The continuation at step {step:,} (temperature {TEMPERATURE}, always the same seed):")
    st.code(text, language=None, wrap_lines=True)


@st.cache_data(max_entries=256, show_spinner=False)
def _continuation(run: str, step: int, written: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The sampled tokens; `written`, the modification time of the file, is part of the cache key."""
    model = load(snapshot_file(run_store.store().folder_of(run), step)).model
    draw = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=TEMPERATURE)
    return tuple(one.token for one in continue_text(model, prompt, SAMPLE_LENGTH, sampling=sampling, generator=draw))
