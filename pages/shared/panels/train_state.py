"""Where a run stands, in a word and in a sentence."""

from __future__ import annotations

import math

from pages.shared import desk
from pages.shared.panels.train_estimate import duration
from xformer.presets import Preset
from xformer.tasks.rules import RULES
from xformer.training import queue
from xformer.training.book import ELSEWHERE, Entry

BADGES = {
    "queued": ("waiting", "orange", ":material/hourglass_top:"),
    "running": ("training", "green", ":material/play_circle:"),
    "paused": ("paused", "orange", ":material/pause_circle:"),
    "stopped": ("stopped", "gray", ":material/stop_circle:"),
    "finished": ("finished", "blue", ":material/check_circle:"),
    "failed": ("failed", "red", ":material/error:"),
    "interrupted": ("interrupted", "red", ":material/power_off:"),
}


def state_words(entry: Entry, settings: Preset, who: str) -> str:
    """Where the run stands, in one plain sentence."""
    steps = settings.train.steps
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        place = queue.place(entry.id, desk.book().entries(), queue.devices())
        ahead = "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"
        words = f"Waiting for its turn: {ahead}."
    elif entry.state == "running" and entry.pid is None:
        words = "Starting its process; that takes a few seconds."
    elif entry.state == "running":
        rate = entry.step / entry.seconds if entry.seconds > 0 else 0.0  # of the whole run: the latest one jumps about
        left = f", about {duration((steps - entry.step) / rate)} left" if rate > 0 and entry.step < steps else ""
        words = (
            f"Training on {device_words(entry)}: {far}{left}."
            if entry.step < steps
            else "Scoring it on unseen examples."
        )
    elif entry.state == "paused":
        words = f"Paused at {far}. Step goes on by one step, Resume for good."
    elif entry.state == "stopped":
        words = f"Stopped at {far}. Resume goes on from there."
    elif entry.state == "finished":
        words = f"Finished at {far}, {duration(entry.seconds)} of training on {device_words(entry)}."
        score, loss = entry.figures.get("exact_match"), entry.figures.get("loss")
        if RULES[settings.task.name].goes_on and isinstance(loss, float):
            words += f" On text it never read: {loss:.4f} nats, {loss / math.log(2):.3f} bits per character."
        elif isinstance(score, float):
            words += f" On {entry.figures.get('samples', 0):,} unseen examples: {score:.2%} exact match."
    else:
        words = f"{BADGES[entry.state][0].capitalize()} at {far}."
    if entry.message and entry.state != "failed":  # that is said in a frame of its own
        words += f" {entry.message}"
    elif entry.state == "interrupted":
        words += " Resume goes on from the last state it kept."
    if not desk.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def device_words(entry: Entry) -> str:
    """The device as a person says it."""
    if entry.device == ELSEWHERE:
        return "another program’s device"
    return "the CPU" if entry.device in (None, "cpu") else f"GPU {entry.device.removeprefix('cuda:')}"
