"""Before a run: five presets that start with one press, the others in groups, and settings of one's own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.shared import models, run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.widgets import typed
from pages.train import form as fields
from pages.train import form as form_of
from pages.train.form import text_choice
from pages.train.state import start_once, train_state
from xformer.counting import n_parameters, parameters_by_part
from xformer.disk_quota import megabytes
from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.formatting import duration
from xformer.presets import PRESETS, Preset, credit
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task
from xformer.training import dispatch
from xformer.training.entry import ELSEWHERE, Entry
from xformer.training.jobs import with_text
from xformer.training.limits import disk_needed, memory_needed
from xformer.training.loop import Run, Stopped
from xformer.training.sweeps import READY, SWEPT, USUAL, read_values, words
from xformer.training.transfer import TAG

FIRST = ("reverse-small", "reverse-mirror", "reverse-seq2seq", "induction", "digits")
"""What a newcomer sees: quick, and each with another picture to watch for. The very first has the large button."""
OTHERS = "Other tasks"
OWN = "train_own"
"""The key of the expander with the form."""


def setup(who: str) -> None:
    """The first presets, the groups, and the form; what is folded is not drawn."""
    ticket = train_state().next_ticket()
    if not train_state().form_preset:
        fill(FIRST[0])
    if not run_store.is_open():
        st.caption(":material/group: Everyone on this server can watch what you train, and look at its weights.")
    plan = ask_plan()
    entries, gpu = known_runs(), len(dispatch.devices()) > 1
    if plan.way != ONE:
        ready_sweeps(who, ticket)
    with st.container(border=True, gap="small", key="presets_first"):
        for name in FIRST:
            _preset(PRESETS[name], who, ticket, entries, gpu, plan)
    form = st.expander("**Settings of your own**", key=OWN, on_change="rerun", icon=":material/tune:")
    if form.open:
        with form:
            own(who, ticket, plan)
    for title, presets in grouped().items():
        words = f"**{title}** :gray[ · {', '.join(preset.title for preset in presets)}]"
        group = st.expander(words, key=group_key(title), on_change="rerun")
        if group.open:
            with group, st.container(gap="small", key=f"{group_key(title)}_of"):
                for preset in presets:
                    _preset(preset, who, ticket, entries, gpu, plan)
    st.caption(
        "Times are expectations: from an earlier run of the same model here, else from the training of the shipped models, "
        "perhaps on another machine. The form times a few steps on this one."
    )


def group_key(title: str) -> str:
    """The key of the expander of a group."""
    return f"presets_{title.split()[0].rstrip(',').lower()}"


def grouped() -> dict[str, list[Preset]]:
    """The presets that are not among the first, by what they learn."""
    groups: dict[str, list[Preset]] = {}
    for preset in PRESETS.values():
        if preset.name not in FIRST:
            groups.setdefault(_group(preset.task.name), []).append(preset)
    return groups


def _group(task: str) -> str:
    """Under which title a task's presets stand."""
    if task == PRESETS[FIRST[0]].task.name:
        return "Reversing, in other ways"
    limits = TASK_LIMITS[task]
    return "Text" if limits.is_text else "Images" if limits.is_image else OTHERS


def _preset(preset: Preset, who: str, ticket: int, entries: list[Entry], gpu: bool, plan: Plan) -> None:
    """One preset: what it is, how long it takes, and a press to start it."""
    is_first = preset.name == FIRST[0] and plan.way == ONE
    seconds = expected_at_once(watchable(preset), entries, gpu).seconds
    time = "time not known" if seconds is None else f"**about {duration(seconds)}**"
    if plan.way != ONE:  # in a stack a step takes another time
        time = f"**{plan.n} models**"
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key=f"card_{preset.name}", width="stretch"
    ):
        with st.container(gap=None, width="stretch"):
            size = f"{n_parameters(preset.model):,} parameters · {preset.train.steps:,} steps · {time}"
            st.markdown(f"**{preset.title}** :small[:gray[{size}]]")
            st.caption(f"{preset.about} {credit(preset.name)}")
        with st.container(horizontal=True, gap="xsmall", width="content", key=f"press_{preset.name}"):
            st.button(
                "Start",
                type="primary" if is_first else "secondary",
                icon=":material/play_arrow:",
                on_click=start,
                args=(watchable(preset), "auto", "", ticket, plan.settings),
                disabled=not who or not plan.is_good,
                key=f"start_{preset.name}",
            )
            st.button(
                "",
                type="tertiary",
                icon=":material/tune:",
                on_click=_change,
                args=(preset.name,),
                key=f"change_{preset.name}",
                help="Change its settings first: puts them into the form below.",
            )


def _change(name: str) -> None:
    change(name)
    st.session_state[OWN] = True


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
        choices = ["auto", *dispatch.devices()]
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
    gpu = device.startswith("cuda") or (device == "auto" and len(dispatch.devices()) > 1)
    alone = "" if plan.n == 1 else " for one of them alone"
    st.caption(f"**Time{alone}:** {expected(settings, entries, gpu).sentence()}.")
    st.caption(takes(settings, plan))
    waiting = len(dispatch.in_turn(entries)) + sum(entry.is_active for entry in entries)
    if waiting:
        st.caption(f"**Queue:** {waiting} {'run is' if waiting == 1 else 'runs are'} waiting or in training already.")


ONE, SEEDS, SWEEP = "one", "seeds", "sweep"

WAYS = {ONE: "One model", SEEDS: "Many seeds", SWEEP: "A sweep"}

NOTHING = ""

KEPT = 8
"""About so many snapshots each model of a sweep keeps: many models watch each other, not themselves."""

Settings = Mapping[str, Sequence[Any]] | None


@dataclass(frozen=True)
class Plan:
    """What Start does: `settings` are what is swept, None for one model; `is_good` is False where nothing can be started."""

    settings: Settings = None
    is_good: bool = True
    way: str = ONE

    @property
    def n(self) -> int:
        """How many models it is."""
        return math.prod(map(len, (self.settings or {}).values()))


def ask_plan() -> Plan:
    """The choice, and what belongs to it."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="train_many"):
        way = st.segmented_control(
            "Start trains", list(WAYS), default=ONE, required=True, format_func=WAYS.__getitem__, key="train_way",
            persist_state="session",
        )  # fmt: skip
        if way == ONE:
            st.caption(
                "Many seeds, or a sweep over settings, are trained at once; three are ready to start.", width="content"
            )
            return Plan()
        if way == SEEDS:
            most = run_store.limits().models
            n = st.number_input(
                "Seeds", 2, max(2, most), min(16, max(2, most)), key="train_seeds", persist_state="session", width=130
            )
            plan = Plan({"seed": range(int(n))}, way=SEEDS)
        else:
            plan = _ask_sweep()
    if plan.is_good:
        st.caption(
            f"{plan.n} models of one shape, trained as one stacked computation; each of them becomes a run of its own. "
            "Start works with any preset below, and with settings of your own."
        )
    return plan


def _ask_sweep() -> Plan:
    found: dict[str, list[Any]] = {}
    problem = ""
    for number, first in enumerate(("peak_lr", "seed")):
        options = list(SWEPT) if number == 0 else [NOTHING, *SWEPT]
        name = st.selectbox(
            "Sweep" if number == 0 else "and", options, index=options.index(first), key=f"sweep_name_{number}",
            format_func=lambda name: words(name) if name else "nothing else", persist_state="session", width=170,
        )  # fmt: skip
        if not name:
            continue
        text = st.text_input(
            "over", USUAL[name], key=f"sweep_values_{number}_{name}", persist_state="session", width=250,
            help="Numbers with commas between them; 0-15 for whole numbers.",
        )  # fmt: skip
        try:
            values = read_values(name, typed(text, 400))
        except XformerError as error:
            problem = problem or str(error)
            continue
        if name in found:
            problem = problem or f"A sweep over two settings needs two different ones, got {words(name)} twice."
        found[name] = values
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
    return Plan(found, not problem, SWEEP)


def with_few_snapshots(preset: Preset) -> Preset:
    """A preset that keeps a few snapshots only: many models keep theirs at once."""
    return replace(preset, train=preset.train.replace(snapshot_every=max(1, preset.train.steps // KEPT)))


def takes(settings: Preset, plan: Plan) -> str:
    """What it takes of memory and of the disk, as Markdown."""
    memory = memory_needed(settings, n_models=plan.n)
    disk = plan.n * disk_needed(settings if plan.settings is None else with_few_snapshots(settings))
    return f"**Memory:** about {megabytes(memory)}. **Disk:** {megabytes(disk)}."


def name_of(preset: Preset, settings: Mapping[str, Sequence[Any]]) -> str:
    """What a sweep is called, unless a person says so."""
    if list(settings) == ["seed"]:
        return f"{preset.title} × {len(settings['seed'])} seeds"
    return f"{preset.title}: {' × '.join(map(words, settings))}"


def ready_sweeps(who: str, ticket: int) -> None:
    """Draw them."""
    with st.container(border=True, gap="small", key="sweeps_ready"):
        st.markdown("**Many models at once** :small[:gray[ready to start]]")
        for one in READY.values():
            n, steps = math.prod(map(len, one.settings.values())), one.preset.train.steps
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"sweep_{one.name}"):
                with st.container(gap=None, width="stretch"):
                    st.markdown(f"**{one.title}** :small[:gray[{n} models · {steps:,} steps each at most]]")
                    st.caption(one.about)
                st.button(
                    "Start",
                    type="primary" if one.name == "seeds" else "secondary",
                    icon=":material/play_arrow:",
                    on_click=start,
                    args=(one.preset, "auto", one.title, ticket, one.settings),
                    disabled=not who,
                    key=f"start_sweep_{one.name}",
                )


STEPS = 3

MOST_WORK = 1.2e9
"""Multiplications of a step up to which three of them are timed while a visitor waits."""


@dataclass(frozen=True)
class Expected:
    """How long a run will take: None where nobody knows, and in either case why."""

    seconds: float | None
    why: str

    def sentence(self) -> str:
        """The time, and where it comes from."""
        return f"not measured: {self.why}" if self.seconds is None else f"about {duration(self.seconds)}, {self.why}"


def known_runs() -> list[Entry]:
    """All runs, to learn from how long they took; none where the store cannot be read, which the screen has said already."""
    try:
        return run_store.store().entries()
    except RunStoreError:
        return []


def expected(settings: Preset, entries: Sequence[Entry], gpu: bool) -> Expected:
    """The time from an earlier run here on the same kind of device, else from a few steps that are timed now."""
    steps = settings.train.steps
    earlier = _earlier(settings, entries, gpu)
    if earlier is not None:
        return earlier
    if work(settings) > MOST_WORK:
        return Expected(None, "this model is too big to try while you wait")
    model = json.dumps([settings.model.to_json(), settings.task.to_json()])
    try:
        seconds = steps * _seconds_a_step(model, settings.train.batch_size, settings)
    except XformerError as error:
        return Expected(None, escape_markdown(str(error)))
    return Expected(seconds, f"on this CPU, measured on {STEPS} steps just now")


def expected_at_once(settings: Preset, entries: Sequence[Entry], gpu: bool) -> Expected:
    """The same without timing anything: a list of presets opens at once, and a busy server is not made busier."""
    earlier = _earlier(settings, entries, gpu)
    if earlier is not None:
        return earlier
    shipped = shipped_training()
    if settings.name in shipped:
        return Expected(shipped[settings.name][0], "as the shipped model took where it was trained")
    if not shipped:
        return Expected(None, "no earlier run to go by")
    here = work(settings)
    nearest = min(shipped, key=lambda name: abs(math.log(work(PRESETS[name]) / here)))
    seconds, steps = shipped[nearest]
    a_step = seconds / steps * here / work(PRESETS[nearest])
    return Expected(settings.train.steps * a_step, f"by its size, beside the shipped “{nearest}”")


@st.cache_data(max_entries=1, show_spinner=False)
def shipped_training() -> dict[str, tuple[float, int]]:
    """In how many seconds and steps the shipped model of a preset was trained on a CPU; the cards alone are read."""
    found = {}
    for file in models.FOLDER.glob("*/card.json"):
        card = json.loads(file.read_text("utf-8"))
        if card["preset"] in PRESETS and card["device"] == "cpu" and card["seconds"] > 0 and card["step"] > 0:
            found[card["preset"]] = (float(card["seconds"]), int(card["step"]))
    return found


def _earlier(settings: Preset, entries: Sequence[Entry], gpu: bool) -> Expected | None:
    """From a run here of the same model; on a GPU there is nothing else to go by."""
    alike = [entry for entry in entries if _is_like(entry, settings, gpu) and entry.step >= 50 and entry.seconds > 0]
    if alike:
        seconds = settings.train.steps * alike[0].seconds / alike[0].step
        return Expected(seconds, f"as an earlier run of this model went on {_place(alike[0].device)}")
    return Expected(None, "this model has not run on this GPU yet") if gpu else None


def work(settings: Preset) -> float:
    """About how many multiplications one step takes: 6 a weight and token (forward 2, backward 4)."""
    streams = 1 if settings.task.architecture == "encoder" else 2
    tokens = settings.train.batch_size * streams * (settings.task.min_len + settings.task.max_len) / 2
    return 6.0 * n_parameters(settings.model) * tokens


@st.cache_data(max_entries=64, show_spinner=False)
def _seconds_a_step(model: str, batch_size: int, _settings: Preset) -> float:
    """Seconds of a training step in this process, the first one aside. `model` names the settings for the cache."""
    recipe = _settings.train.replace(
        steps=10_000, log_every=10_000, held_out=2, snapshot_every=0, target=0.0, lr_changes=()
    )
    run = Run(replace(_settings, train=recipe), Task(_settings.task), torch.device("cpu"), None)
    first = 0.0

    def between() -> None:
        nonlocal first
        if run.step == 1:
            first = run.seconds
        if run.step == 1 + STEPS:
            raise Stopped

    with suppress(Stopped):
        for _ in run.reports(between):
            pass
    return (run.seconds - first) / STEPS


def _is_like(entry: Entry, settings: Preset, gpu: bool) -> bool:
    """Whether a run was trained here, on that kind of device, in steps of the same size."""
    elsewhere = ELSEWHERE in (entry.wanted, entry.device) or TAG in entry.tags
    stacked = entry.sweep is not None or bool(entry.sweep_of)  # there a step takes another time
    return (
        not (entry.private or elsewhere or stacked)
        and (entry.device or "cpu").startswith("cuda") == gpu
        and entry.model == settings.model.to_json()
        and entry.task == settings.task.to_json()
        and entry.train.get("batch_size") == settings.train.batch_size
    )


def _place(device: str | None) -> str:
    return "this CPU" if device in (None, "cpu") else f"the GPU {device}"
