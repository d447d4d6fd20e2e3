"""Where a sweep stands, in a sentence, and how far it is."""

from __future__ import annotations

import pandas as pd

from pages.shared import run_store
from pages.train.status import BADGES, device_words
from xformer.training import queue
from xformer.training.entry import Entry
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweep_members import Member
from xformer.words import duration


def far_along(sweep: StoredSweep, entry: Entry) -> float:
    """How far the bar stands: of the steps of all models, those that are done or will not be made."""
    if entry.state == "finished":
        return 1.0
    done = sum(_steps(sweep, member) / member.preset.train.steps for member in sweep.members)
    return min(1.0, done / len(sweep.members))


def sweep_words(sweep: StoredSweep, entry: Entry, outcomes: pd.DataFrame, who: str) -> str:
    """Where it stands, in one plain sentence or two."""
    words = _where(sweep, entry, outcomes)
    if entry.message and entry.state != "failed":
        words += f" {entry.message}"
    elif entry.state == "stopped" and "stopped" in outcomes["state"].tolist():
        words += " Resume goes on with all that were stopped; each of them can also be resumed by itself."
    if entry.private and not run_store.is_open():
        words += " Only you see it, until you share it on the Runs screen."
    if not run_store.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def _where(sweep: StoredSweep, entry: Entry, outcomes: pd.DataFrame) -> str:
    n = len(sweep.members)
    steps = max(member.preset.train.steps for member in sweep.members)
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        place = queue.place(entry.id, run_store.store().entries(), queue.devices())
        ahead = "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"
        return f"{n} models are waiting for their turn: {ahead}."
    going = n - len(sweep.runs)
    if entry.state == "running":
        if entry.pid is None:
            return f"Starting the process of {n} models; that takes a few seconds."
        left = "" if going == n else f", {n - going} have left the stack"
        return f"Training {going} of {n} models together on {device_words(entry)}: {far}{left}.{at_most(sweep, entry)}"
    if entry.state == "finished":
        return f"Finished: {n} models, {duration(entry.seconds)} of training in all on {device_words(entry)}."
    return f"{BADGES[entry.state][0].capitalize()} at {far}; {_of(outcomes, n)}."


def at_most(sweep: StoredSweep, entry: Entry) -> str:
    """How long the rest takes at the pace of now; less where models reach their goal before. Nothing before a pace is known."""
    rate = entry.live.get("steps_per_second") or 0.0
    left = sum(member.preset.train.steps - _steps(sweep, member) for member in sweep.members)
    return f" At this pace, about {duration(left / rate)} left at most." if rate > 0 and left > 0 else ""


def _of(outcomes: pd.DataFrame, n: int) -> str:
    over = outcomes["state"].tolist().count("finished")
    return f"{over} of {n} models had come to their end"


def _steps(sweep: StoredSweep, member: Member) -> int:
    """The steps of a model that are behind it, all of them once it has left."""
    run = sweep.runs.get(member.id)
    if run is not None and run.state in ("finished", "failed"):
        return member.preset.train.steps
    rows = sweep.rows_of[member.id]
    return rows[-1]["step"] if rows else 0
