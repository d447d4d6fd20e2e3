"""Where a run stands, in a word and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pages.shared import run_store
from xformer.presets import Preset
from xformer.tasks.rules import RULES
from xformer.training import queue
from xformer.training.cells import SCORING
from xformer.training.entry import ELSEWHERE, Entry
from xformer.words import duration, percent

BADGES: dict[str, tuple[str, Literal["orange", "green", "gray", "blue", "red"], str]] = {
    "queued": ("waiting", "orange", ":material/hourglass_top:"),
    "running": ("training", "green", ":material/play_circle:"),
    "paused": ("paused", "orange", ":material/pause_circle:"),
    "stopped": ("stopped", "gray", ":material/stop_circle:"),
    "finished": ("finished", "blue", ":material/check_circle:"),
    "failed": ("failed", "red", ":material/error:"),
    "interrupted": ("interrupted", "red", ":material/power_off:"),
}


def state_words(entry: Entry, settings: Preset, who: str) -> str:
    """Where the run stands, in one plain sentence or two."""
    words = _where(entry, settings)
    if entry.message and entry.state != "failed":  # that is said in a frame of its own
        words += f" {entry.message}"
    elif entry.state in ("stopped", "interrupted"):
        words += (
            " Resume goes on from there."
            if entry.state == "stopped"
            else " Resume goes on from the last state it kept."
        )
    if entry.private and not run_store.is_open():
        words += " Only you see it, until you share it on the Runs screen."
    if not run_store.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def looking_back(step: int | None, rows: Sequence[Mapping[str, Any]], is_text: bool) -> str:
    """What was known at an earlier step that is looked at, before what is to be said on the run; nothing for the latest."""
    if step is None:
        return ""
    row = next((row for row in reversed(rows) if row["step"] <= step), None)
    value = None if row is None else row.get("held_out_loss" if is_text else "held_out_exact_match")
    if row is None or not isinstance(value, (int, float)):
        return f"You look at step {step:,}. The run itself: "
    known = f"{value / math.log(2):.3f} bits per character" if is_text else f"{percent(value, 1)} exact match"
    at = "" if row["step"] == step else f" as reported at step {row['step']:,}"
    return f"You look at step {step:,}, with {known}{at}. The run itself: "


def far_along(entry: Entry, settings: Preset) -> float:
    """How far the bar stands: of the training, and after it of the scoring."""
    done = scored(entry)
    return done[0] / done[1] if done else min(1.0, entry.step / settings.train.steps)


def scored(entry: Entry) -> tuple[int, int, float] | None:
    """While a run that is through is scored: examples done, of how many, and for how many seconds; else None."""
    found = entry.live.get(SCORING) if entry.state == "running" else None
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(n, (int, float)) for n in found):
        return None
    done, total, seconds = found
    return int(done), max(1, int(total)), float(seconds)


def _where(entry: Entry, settings: Preset) -> str:
    steps = settings.train.steps
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        place = queue.place(entry.id, run_store.store().entries(), queue.devices())
        ahead = "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"
        return f"Waiting for its turn: {ahead}."
    if entry.state == "running" and entry.pid is None:
        return "Starting its process."
    if entry.state == "running" and (done := scored(entry)) is not None:
        left = f", about {duration(done[2] * (done[1] - done[0]) / done[0])} left" if done[0] else ""
        return f"Trained. Scoring it on unseen examples: {done[0]:,} of {done[1]:,}{left}."
    if entry.state == "running":
        rate = entry.step / entry.seconds if entry.seconds > 0 else 0.0  # of the whole run: the latest one jumps about
        left = f", about {duration((steps - entry.step) / rate)} left" if rate > 0 and entry.step < steps else ""
        return f"Training on {device_words(entry)}: {far}{left}."
    if entry.state == "paused":
        if not entry.is_active:
            return f"Paused at {far}, and its process has ended meanwhile. Resume starts it again from there."
        return f"Paused at {far}. Step goes on by one step, Resume for good."
    if entry.state == "finished":
        words = f"Finished at {far}, {duration(entry.seconds)} of training on {device_words(entry)}."
        score, loss = entry.figures.get("exact_match"), entry.figures.get("loss")
        on = f"On {entry.figures.get('samples', 0):,} unseen examples:"
        if RULES[settings.task.name].is_open_ended and isinstance(loss, float):
            words += f" On text it never read: {loss:.4f} nats, {loss / math.log(2):.3f} bits per character."
        elif isinstance(score, float):
            words += f" {on} {percent(score)} exact match."
        return words
    if entry.state == "interrupted":
        return f"Interrupted after {far}."
    return f"{BADGES[entry.state][0].capitalize()} at {far}."


def device_words(entry: Entry) -> str:
    """The device as a person says it."""
    if entry.device == ELSEWHERE:
        return "another program’s device"
    return "the CPU" if entry.device in (None, "cpu") else f"GPU {entry.device.removeprefix('cuda:')}"
