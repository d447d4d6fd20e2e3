"""How long a run will take: from earlier runs of the same model, else from the shipped models, or three steps timed now."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import streamlit as st
import torch

from pages.shared import models, run_store
from pages.shared.escape_markdown import escape_markdown
from xformer.counting import n_parameters
from xformer.errors import RunStoreError, XformerError
from xformer.presets import PRESETS, Preset
from xformer.tasks import Task
from xformer.training.entry import ELSEWHERE, Entry
from xformer.training.loop import Run, Stopped
from xformer.training.transfer import TAG
from xformer.words import duration

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
