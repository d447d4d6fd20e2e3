"""Settings of one's own: a form that begins from a preset, what they come to in parameters, time and memory, and a start."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.train import form as fields
from pages.train import form as form_of
from pages.train.estimate import expected, known_runs
from pages.train.form import text_choice
from pages.train.many import Plan, Settings, name_of, takes, with_few_snapshots
from pages.train.state import start_once, train_state
from xformer.counting import n_parameters, parameters_by_part
from xformer.errors import ConfigError, XformerError
from xformer.presets import PRESETS, Preset
from xformer.task_limits import TASK_LIMITS
from xformer.training import queue
from xformer.training.own_text import with_text

FORM = "own"
FRAMES = 40
"""About so many snapshots a run started here keeps, so that the moment a head appears can be scrubbed to."""


def watchable(preset: Preset) -> Preset:
    """A preset with snapshots close enough to watch it learn; what it learns does not depend on them."""
    every = max(1, preset.train.steps // FRAMES)
    every = next((n for n in (10, 20, 25, 50, 100, 200, 500, 1000) if n >= every), every)
    return replace(preset, train=preset.train.replace(snapshot_every=min(every, preset.train.snapshot_every)))


def start(settings: Preset, device: str, name: str, ticket: int, sweep: Settings = None) -> None:
    """Put a run into the queue and show it; with `sweep`, a run of many models at once. A callback."""
    if sweep is not None:
        settings, name = with_few_snapshots(settings), name or name_of(settings, sweep)
    start_once(ticket, lambda: run_commands.start(settings, name=name, device=device, sweep=sweep))


def change(name: str) -> None:
    """Have the form begin from that preset, as a callback."""
    fill(name)
    st.toast(f"The form begins from “{PRESETS[name].title}” now.", icon=":material/tune:")


def fill(name: str) -> None:
    """Have the form begin from that preset."""
    state = train_state()
    state.form_preset, state.form_text = name, ""
    form_of.put(watchable(PRESETS[name]), FORM)


def _take_text(preset: Preset) -> None:
    """Have the form go on with another text; whatever else was changed in it stays."""
    text = preset.task.text
    try:
        preset = with_text(form_of.settings(_base(), FORM), text)
    except XformerError:  # what stands in the form breaks a rule: begin from the preset
        preset = watchable(preset)
    train_state().form_text = text
    form_of.put(preset, FORM)


def _base() -> Preset:
    """What the form began from."""
    preset, text = PRESETS[train_state().form_preset], train_state().form_text
    try:
        return with_text(preset, text) if text else preset
    except XformerError:  # its file was taken away meanwhile
        return preset


def own(who: str, ticket: int, plan: Plan) -> None:
    """The form, what it comes to, and the button that starts it."""
    base = _base()
    form, summary = st.columns([2.4, 1], gap="large")
    with form:
        st.markdown(f"Beginning from **{base.title}**.")
        if TASK_LIMITS[base.task.name].is_text:
            text_choice(base, _take_text)
        form_of.ask(fields.TASK, FORM)
        form_of.ask(fields.MODEL, FORM)
        form_of.ask(fields.TRAIN, FORM)
        with st.expander("More about the model"):
            form_of.ask(fields.MODEL_MORE, FORM)
        with st.expander("More about the training"):
            form_of.ask(fields.TRAIN_MORE, FORM)
    with summary:
        name = st.text_input("Name", key="own_name", placeholder="as the settings say", persist_state="session")
        choices = ["auto", *queue.devices()]
        device = st.selectbox(
            "Device",
            choices,
            format_func=lambda choice: {"auto": "auto", "cpu": "CPU"}.get(
                choice, f"GPU {choice.removeprefix('cuda:')}"
            ),
            key="own_device",
            help="Auto takes a GPU where there is one.",
        )
        settings = _checked(base, plan.n)
        if settings is not None:
            _summary(settings, device, plan)
        st.button(
            "Start",
            type="primary",
            icon=":material/play_arrow:",
            disabled=settings is None or not who or not plan.is_good,
            on_click=start,
            args=(settings, device, name, ticket, plan.settings),
            width="stretch",
            key="start_own",
        )


def _checked(base: Preset, n: int) -> Preset | None:
    """What the form says, or None and a sentence on what is wrong."""
    try:
        settings = form_of.settings(base, FORM)
        run_store.limits().check_size(settings, n_models=n)
    except ConfigError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
    except XformerError as error:
        st.error(escape_markdown(str(error)), icon=":material/block:")
    else:
        return settings
    return None


def _summary(settings: Preset, device: str, plan: Plan) -> None:
    entries = known_runs()
    with st.popover(f"{n_parameters(settings.model):,} parameters", width="stretch", help="Counted part by part."):
        parts = parameters_by_part(settings.model)
        table = pd.DataFrame(
            {"part": [p.name for p in parts], "how": [p.formula for p in parts], "numbers": [p.count for p in parts]}
        )
        st.dataframe(table, hide_index=True)
    gpu = device.startswith("cuda") or (device == "auto" and len(queue.devices()) > 1)
    alone = "" if plan.n == 1 else " for one of them alone"
    st.caption(f"**Time{alone}:** {expected(settings, entries, gpu).sentence()}.")
    st.caption(takes(settings, plan))
    waiting = len(queue.in_turn(entries)) + sum(entry.is_active for entry in entries)
    if waiting:
        st.caption(f"**Queue:** {waiting} {'run is' if waiting == 1 else 'runs are'} waiting or in training already.")
