"""Starting a run: presets, many seeds, a sweep, or a form with all settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from pages.compute import models, run_commands, run_thumbnail, visible_runs
from pages.compute.run_commands import Settings
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose_unlinked, validate_text
from pages.train import form as form_of
from pages.train.status import start_once, train_state
from xformer.counting import n_parameters, parameters_by_part
from xformer.disk_quota import megabytes
from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.formatting import duration
from xformer.presets import PRESETS, Preset, credit
from xformer.task_limits import TASK_LIMITS
from xformer.training import jobs
from xformer.training.card import TAG
from xformer.training.jobs import with_text
from xformer.training.limits import disk_needed, memory_needed
from xformer.training.run_record import ELSEWHERE, RunRecord
from xformer.training.sweeps import READY, SWEPT, USUAL, read_values, words

FIRST = ("reverse-small", "reverse-mirror", "reverse-seq2seq", "induction", "brackets", "digits")
"""The presets shown first: each is quick and has a distinct picture. The first one has the primary button."""
ONE, SEEDS, SWEEP = "one", "seeds", "sweep"
PLANS = {ONE: "One model", SEEDS: "Many seeds", SWEEP: "A sweep"}
QUICK, OWN = "quick", "own"
GROUPS = {
    QUICK: "Quick", "reversing": "Reversing", "text": "Text", "images": "Images", "other": "Other tasks",
    SEEDS: PLANS[SEEDS], SWEEP: PLANS[SWEEP], OWN: "Your own",
}  # fmt: skip
FORM = "own"
FRAMES = 40
"""Approximate number of snapshots of a run started on this screen."""
FRAMES_OF_MEMBER = 8
"""Approximate number of snapshots of each model of a sweep."""


@dataclass(frozen=True)
class Plan:
    """What the Start button trains: one model or a sweep."""

    settings: Settings = None
    """The swept settings; None for one model."""
    is_valid: bool = True

    @property
    def n(self) -> int:
        """The number of models."""
        return math.prod(map(len, (self.settings or {}).values()))


class Expected(NamedTuple):
    """The expected time of a run."""

    seconds: float | None
    """None if it is unknown."""
    basis: str
    """The basis of the estimate, or why there is none."""


def setup(visitor: str) -> None:
    """Draw the screen that starts runs: the presets as cards, or the form."""
    ticket = train_state().next_ticket()
    if not train_state().form_preset:
        _fill(FIRST[0])
    if reason := run_commands.why_not():
        st.info(reason, icon=":material/visibility:")
    elif not visible_runs.is_open():
        st.caption(":material/group: Everyone on this server can watch your runs and open their weights.")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="train_what"):
        group = choose_unlinked("What to train", GROUPS, "train_group", default=QUICK)
        kind = group if group in PLANS else ONE
        if group == OWN:
            kind = choose_unlinked("How many", PLANS, "train_way", default=ONE)
        plan = _ask_plan(kind)
    if plan.is_valid and kind != ONE:
        st.caption(f"{plan.n} models of the same shape train together; each becomes its own run.")
    if group == OWN:
        _own(visitor, ticket, plan)
        return
    if kind != ONE:
        _ready_sweeps(visitor, ticket)
    _preset_cards(grouped().get(group, list(PRESETS.values())), kind, plan, visitor, ticket)


def _ready_sweeps(visitor: str, ticket: int) -> None:
    with st.container(horizontal=True, gap="small", key="sweeps_ready"):
        for sweep in READY.values():
            size = f"{math.prod(map(len, sweep.settings.values()))} models  \n{sweep.preset.train.steps:,} steps"
            begin, is_first = (
                partial(start, sweep.preset, "auto", sweep.title, ticket, sweep.settings),
                sweep.name == "seeds",
            )
            _card(f"sweep_{sweep.name}", sweep.title, size, sweep.about, begin, is_first, is_possible=bool(visitor))


def _preset_cards(presets: Sequence[Preset], kind: str, plan: Plan, visitor: str, ticket: int) -> None:
    entries, gpu = known_runs(), len(jobs.devices()) > 1
    with st.container(horizontal=True, gap="small", key="cards"):
        for preset in presets:
            settings, name = watchable(preset), preset.name
            begin = partial(start, settings, "auto", "", ticket, plan.settings)
            time = expected(settings, entries, gpu, plan.n).seconds
            words = "time unknown" if time is None else f"about {duration(time)}"
            words = words if kind == ONE else f"{plan.n} models, {words}"
            size = f"{n_parameters(preset.model):,} parameters  \n{words}"
            is_first, is_possible = name == FIRST[0] and kind == ONE, bool(visitor) and plan.is_valid
            _card(name, preset.title, size, preset.about, begin, is_first, is_possible=is_possible, shipped=name)
    about = (f"**{preset.title}.** {preset.about} {credit(preset.name)}" for preset in presets)
    words = "The pictures show attention of the shipped model, and its loss. The times are estimates."
    st.caption(words, help="\n\n".join(about))


def grouped() -> dict[str, list[Preset]]:
    """Return the presets by group."""
    groups: dict[str, list[Preset]] = {QUICK: [PRESETS[name] for name in FIRST]}
    for preset in PRESETS.values():
        groups.setdefault(_group(preset.task.name), []).append(preset)
    return groups


def _group(task: str) -> str:
    if task == PRESETS[FIRST[0]].task.name:
        return "reversing"
    limits = TASK_LIMITS[task]
    return "text" if limits.is_text else "images" if limits.is_image else "other"


def _card(
    key: str, title: str, size: str, about: str, begin: Callable[[], None], is_first: bool, *,
    is_possible: bool, shipped: str = "",
) -> None:  # fmt: skip
    """Draw the card of a preset or a sweep: a thumbnail, its size and expected time, and a Start button.

    Args:
        key: The suffix of the keys of the card and its button.
        title: Its title.
        size: Its size and expected time.
        about: The help text of the button.
        begin: Called by the button.
        is_first: Whether the button is primary.
        is_possible: Whether it can be started.
        shipped: The shipped model whose thumbnail is drawn.
    """
    with st.container(border=True, width=run_thumbnail.CARD, gap="xsmall", key=f"card_{key}"):
        if shipped:
            run_thumbnail.draw_shipped(shipped)
        st.markdown(f"**{title}**")
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f":small[{size}]", width="stretch")
            button = partial(st.button, "Start", icon=":material/play_arrow:", help=about, on_click=begin)
            button(key=f"start_{key}", type="primary" if is_first else "secondary", disabled=not is_possible)


def watchable(preset: Preset) -> Preset:
    """Return a preset with frequent snapshots, which do not affect what the model learns."""
    every = max(1, preset.train.steps // FRAMES)
    every = next((n for n in (10, 20, 25, 50, 100, 200, 500, 1000) if n >= every), every)
    return replace(preset, train=preset.train.replace(snapshot_every=min(every, preset.train.snapshot_every)))


def _with_few_snapshots(preset: Preset) -> Preset:
    """Return a preset with few snapshots, for a model of a sweep."""
    return replace(preset, train=preset.train.replace(snapshot_every=max(1, preset.train.steps // FRAMES_OF_MEMBER)))


def start(settings: Preset, device: str, name: str, ticket: int, sweep: Settings = None) -> None:
    """Queue a run, or with `sweep` a sweep of many models, and show it. A callback."""
    if sweep is not None:
        settings, name = _with_few_snapshots(settings), name or _sweep_name(settings, sweep)
    start_once(ticket, lambda: run_commands.start(settings, name=name, device=device, sweep=sweep))


def _sweep_name(preset: Preset, settings: Mapping[str, Sequence[Any]]) -> str:
    if list(settings) == ["seed"]:
        return f"{preset.title} × {len(settings['seed'])} seeds"
    return f"{preset.title}: {' × '.join(map(words, settings))}"


def _ask_plan(kind: str) -> Plan:
    """Draw the number of seeds or the settings of a sweep, and return the plan."""
    if kind == ONE:
        return Plan()
    if kind == SWEEP:
        return _ask_sweep()
    most = max(2, visible_runs.limits().models)
    ask = partial(st.number_input, key="train_seeds", persist_state="session", label_visibility="collapsed", width=130)
    n = ask("Seeds", 2, most, min(16, most))
    return Plan({"seed": range(int(n))})


def _ask_sweep() -> Plan:
    found: dict[str, list[Any]] = {}
    problems: list[str] = []
    for number, (label, first) in enumerate((("Sweep", "peak_lr"), ("and", "seed"))):
        options = [*SWEPT, *[""] * number]
        name = st.selectbox(
            label, options, index=options.index(first), key=f"sweep_name_{number}",
            format_func=lambda name: words(name) if name else "nothing else", persist_state="session", width=170,
        )  # fmt: skip
        if not name:
            continue
        if name in found:
            problems.append(f"A sweep needs two different settings, got {words(name)} twice.")
        text = st.text_input(
            "over", USUAL[name], key=f"sweep_values_{number}_{name}", persist_state="session", width=250,
            help="Numbers separated by commas; for whole numbers, also a range such as 0-15.",
        )  # fmt: skip
        try:
            found[name] = read_values(name, validate_text(text, 400))
        except XformerError as error:
            problems.append(str(error))
    if problems:
        st.error(escape_markdown(problems[0]), icon=":material/edit:")
    return Plan(found, not problems)


def _fill(name: str) -> None:
    state = train_state()
    state.form_preset, state.form_text = name, ""
    form_of.put(watchable(PRESETS[name]), FORM)


def _take_text(preset: Preset) -> None:
    """Replace the text in the form and keep its other values."""
    text = preset.task.text
    try:
        preset = with_text(form_of.settings(_base(), FORM), text)
    except XformerError:  # the values of the form are invalid: start from the preset
        preset = watchable(preset)
    train_state().form_text = text
    form_of.put(preset, FORM)


def _base() -> Preset:
    """Return the preset that the form started from, with the chosen text."""
    preset, text = PRESETS[train_state().form_preset], train_state().form_text
    try:
        return with_text(preset, text) if text else preset
    except XformerError:  # the text has been deleted
        return preset


def _own(visitor: str, ticket: int, plan: Plan) -> None:
    """Draw the form, the resources that its settings need, and the Start button."""
    base = _base()
    form, summary = st.columns([2.4, 1], gap="large")
    with form:
        titles = {name: preset.title for name, preset in PRESETS.items()}
        index = list(PRESETS).index(train_state().form_preset)
        ask = partial(st.selectbox, key="own_base", on_change=lambda: _fill(st.session_state["own_base"]))
        ask("Start from", list(titles), index, format_func=titles.__getitem__)
        if TASK_LIMITS[base.task.name].is_text:
            form_of.text_choice(base, _take_text)
        for fields in (form_of.TASK, form_of.MODEL, form_of.TRAIN):
            form_of.ask(fields, FORM)
        with st.expander("More about the model"):
            form_of.ask(form_of.MODEL_MORE, FORM)
        with st.expander("More about the training"):
            form_of.ask(form_of.TRAIN_MORE, FORM)
    with summary:
        name = st.text_input("Name", key="own_name", placeholder="from the settings", persist_state="session")
        names = {name: f"GPU {name.removeprefix('cuda:')}" for name in jobs.devices()} | {"cpu": "CPU", "auto": "auto"}
        devices, help = ["auto", *jobs.devices()], "Auto uses a GPU if there is one."
        device = st.selectbox("Device", devices, key="own_device", format_func=names.__getitem__, help=help)
        settings = _checked(base, plan.n)
        if settings is not None:
            _summary(settings, device, plan)
        button = partial(st.button, "Start", type="primary", icon=":material/play_arrow:", width="stretch")
        begin = None if settings is None else partial(start, settings, device, name, ticket, plan.settings)
        button(key="start_own", on_click=begin, disabled=begin is None or not visitor or not plan.is_valid)


def _checked(base: Preset, n: int) -> Preset | None:
    """Return the settings of the form; draw an error message and return None if they are invalid or too large."""
    try:
        settings = form_of.settings(base, FORM)
        visible_runs.limits().check_size(settings, n_models=n)
    except XformerError as error:
        icon = ":material/edit:" if isinstance(error, ConfigError) else ":material/block:"
        st.error(escape_markdown(str(error)), icon=icon)
        return None
    return settings


def _summary(settings: Preset, device: str, plan: Plan) -> None:
    """Draw the parameters, time, memory, disk space and queue."""
    entries = known_runs()
    with st.popover(f"{n_parameters(settings.model):,} parameters", width="stretch", help="Counted part by part."):
        rows = [{"part": p.name, "how": p.formula, "numbers": p.count} for p in parameters_by_part(settings.model)]
        st.dataframe(rows, hide_index=True)
    gpu = device.startswith("cuda") or (device == "auto" and len(jobs.devices()) > 1)
    seconds, basis = expected(settings, entries, gpu, plan.n)
    in_turns = "" if plan.n == 1 or seconds is None else f" for {plan.n} models in turns"
    time = "not measured" if seconds is None else f"about {duration(seconds)}"
    st.caption(f"**Time:** {time}{in_turns}, {basis}.")
    memory = memory_needed(settings, n_models=plan.n)
    disk = plan.n * disk_needed(settings if plan.settings is None else _with_few_snapshots(settings))
    st.caption(f"**Memory:** about {megabytes(memory)}. **Disk:** {megabytes(disk)}.")
    waiting = len(jobs.queue_order(entries)) + sum(entry.is_active for entry in entries)
    if waiting:
        st.caption(f"**Queue:** {waiting} {'run is' if waiting == 1 else 'runs are'} already waiting or in training.")


def known_runs() -> list[RunRecord]:
    """Return all runs, for time estimates; empty if the store cannot be read."""
    try:
        return visible_runs.store().entries()
    except RunStoreError:
        return []


def expected(settings: Preset, entries: Sequence[RunRecord], gpu: bool, n: int = 1) -> Expected:
    """Estimate the time of `n` models from an earlier run on the same kind of device, else from the shipped models."""
    if gpu and n > 1:
        return Expected(None, "because a GPU trains many models as one computation")
    for entry in entries:
        if _is_comparable(entry, settings, gpu) and entry.step >= 50 and entry.seconds > 0:
            device = "this CPU" if entry.device in (None, "cpu") else f"the GPU {entry.device}"
            seconds = n * settings.train.steps * entry.seconds / entry.step
            return Expected(seconds, f"as for an earlier run of this model on {device}")
    shipped = shipped_training()
    if gpu or not shipped:
        return Expected(None, "because there is no comparable run")
    if settings.name in shipped:
        return Expected(n * shipped[settings.name][0], "as for the shipped model on the machine that trained it")
    here = _step_flops(settings)
    nearest = min(shipped, key=lambda name: abs(math.log(_step_flops(PRESETS[name]) / here)))
    seconds, steps = shipped[nearest]
    a_step = seconds / steps * here / _step_flops(PRESETS[nearest])
    return Expected(n * settings.train.steps * a_step, f"scaled by size from the shipped “{nearest}”")


@st.cache_data(max_entries=1, show_spinner=False)
def shipped_training() -> dict[str, tuple[float, int]]:
    """Return the seconds and steps of training on a CPU for each preset with a shipped model, from its card."""
    found = {}
    for file in models.FOLDER.glob("*/card.json"):
        card = json.loads(file.read_text("utf-8"))
        if card["preset"] in PRESETS and card["device"] == "cpu" and card["seconds"] > 0 and card["step"] > 0:
            found[card["preset"]] = (float(card["seconds"]), int(card["step"]))
    return found


def _step_flops(settings: Preset) -> float:
    """Return the approximate operations per training step: 6 per weight and token (2 forward, 4 backward)."""
    streams = 1 if settings.task.architecture == "encoder" else 2
    tokens = settings.train.batch_size * streams * (settings.task.min_len + settings.task.max_len) / 2
    return 6.0 * n_parameters(settings.model) * tokens


def _is_comparable(entry: RunRecord, settings: Preset, gpu: bool) -> bool:
    """Whether a run was trained on this server and kind of device, with steps of the same size."""
    is_elsewhere = ELSEWHERE in (entry.wanted, entry.device) or TAG in entry.tags
    is_stacked = entry.sweep is not None or (gpu and bool(entry.sweep_of))  # on a CPU, models take their steps in turns
    own = (entry.model, entry.task, entry.train.get("batch_size"), (entry.device or "cpu").startswith("cuda"))
    same = own == (settings.model.to_json(), settings.task.to_json(), settings.train.batch_size, gpu)
    return same and not (entry.private or is_elsewhere or is_stacked)
