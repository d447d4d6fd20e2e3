"""The view of a run: progress, timeline, curves, and what can be done with a step."""

from __future__ import annotations

import random
import time

import streamlit as st
import torch

from pages.components.training_player import resting
from pages.shared import run_commands, run_store, screens
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.frame import picture
from pages.shared.layout import headline, what_to_notice
from pages.shared.picture import toolbar
from pages.shared.session import choose_model
from pages.shared.widgets import typed
from pages.train.form import TRAIN, TRAINING, ask, is_filled, put
from pages.train.form import settings as form_settings
from pages.train.state import (
    player_key,
    rows_so_far,
    share,
    show_problem,
    start_once,
    thinned_curve,
    train_state,
)
from pages.train.status import (
    FIRST,
    again_button,
    change_rate,
    controls,
    figures,
    heading,
    new_run,
    progress,
    tiles,
)
from pages.train.timeline import (
    ACTIVE,
    HEIGHT,
    RunView,
    code_and_files,
    finding,
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
        new_run()
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
        heading(entry)
        show_problem()
        progress(entry, settings, who, rests_at)
        found_at = st.container(key="run_headline")
    frame = metrics_frame(rows_so_far(entry))
    exact = [] if task.rule.is_open_ended else thinned_curve(frame, "held_out_exact_match")
    with toolbar():
        example = _ask_probe(entry, task, settings.model.max_len)
        controls(entry, who)
        new_run()
        more_at = st.popover("More", key="run_more")
    view = RunView(entry, settings, task, example, timeline_of(entry, settings, task, example, rests_at), frame, exact)
    with found_at:
        if found := finding(view):
            headline(found)
        else:
            st.space(29)  # so that the timeline does not move when there is a finding
    with more_at:
        _more(view, who)
    with picture(), st.container(key="film_place"):
        player(view)
    if entry.state not in ACTIVE or time.time() - entry.created >= FIRST_SECONDS:
        _below_player(view)
    else:
        st.caption("The curves follow in a moment.")
    is_evaluating = bool(view.timeline.waiting)
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

    with st.container(horizontal=True, wrap=False, gap="small", key="probe_row"):
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
        st.button("", icon=":material/casino:", on_click=draw, key="probe_random", help="A random input")
    try:
        example = task.example(task.vocabulary.read(typed(text, 400)), max_len=max_len)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return task.example(task.vocabulary.read(st.session_state.get(good_key, default)))
    st.session_state[good_key] = text
    return example


def _below_player(view: RunView) -> None:
    """Draw everything below the player."""
    if view.task.rule.is_open_ended:
        with st.container(key="text_sample"):
            _sample(view)
    look = {"steps": view.settings.train.steps, "shown": view.step, "marks": view.marks, "height": HEIGHT}
    measures = ("bits" if view.task.rule.is_open_ended else "accuracy", "loss")
    calls = [Call(viz.metric_curves, (view.frame,), {"what": what, **look}) for what in measures]
    with st.container(key="run_curves"):
        for place, call in zip(st.columns(2, gap="medium"), calls, strict=True):
            with place:
                metric_chart(call)
    more = st.expander("More figures", key="train_more", on_change="rerun")
    if more.open:
        with more:
            rests_at = resting(view.key).step
            earlier = rests_at if rests_at is not None and rests_at < view.entry.step else None
            rows = rows_so_far(view.entry)
            tiles(figures(view.entry, rows, earlier, view.task.rule.is_open_ended)[FIRST:])
            head_panel(view)
            for place, what in zip(st.columns(2, gap="medium"), ("gradient", "rate"), strict=True):
                calls.append(Call(viz.metric_curves, (view.frame,), {"what": what, **look, "marks": None}))
                with place:
                    metric_chart(calls[-1])
    code_and_files(view, calls)
    if found := notes(view):
        what_to_notice(found)


def _more(view: RunView, who: str) -> None:
    """What can be done with the run and the shown step: open, fork, train again, download, another learning rate."""
    entry, step = view.entry, view.step
    if step is not None:
        st.markdown(f"**Open step {step:,} on**")
        with st.container(horizontal=True, gap="xsmall", key="open_on"):
            for words, page in screens.of_a_model().items():
                if st.button(words, key=f"open_{words}"):
                    choose_model(f"{entry.id}@{step}")
                    st.session_state["input"] = view.task.vocabulary.text(list(view.example.source))
                    st.switch_page(page)
        with st.expander(f"Fork from step {step:,}", icon=":material/fork_right:", key="fork"):
            _fork(entry, view.settings, step, who)
    if entry.state in ("running", "paused") and run_store.may_control(entry, who):
        with st.expander("Change the learning rate", icon=":material/speed:", key="run_rate"):
            change_rate(entry, view.settings)
    folder = run_store.store().folder_of(entry.id)
    with st.container(horizontal=True, gap="small"):
        if not entry.is_active and entry.state != "queued":
            again_button(entry, is_possible=bool(who) and entry.wanted != ELSEWHERE)
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
