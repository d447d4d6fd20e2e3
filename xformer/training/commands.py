"""What a worker does between two steps: carry out commands, wait while paused, write metrics, save the state, and score.

It reads commands ten times a second and writes metrics four times a second; in between it only reads a clock. The state to
resume from is saved every half a minute, however rare the snapshots are.
"""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from contextlib import suppress
from typing import Any

import torch

from xformer.errors import QuotaExceededError, XformerError
from xformer.training import jobs
from xformer.training.entry import SCORING, Entry
from xformer.training.loop import Run, Stopped
from xformer.training.recipe import learning_rate
from xformer.training.run_store import (
    RunStore,
    change_peak,
    entry_of,
    has_stop,
    insert_rows,
    move,
    owned_entry,
    set_columns,
)

LOOK_SECONDS = 0.1
WRITE_SECONDS = 0.25
SAVE_SECONDS = 30.0
"""Seconds between two saved states."""
PAUSE_SECONDS = 0.05
"""Seconds between two looks of a paused run for commands."""
ROOM_SECONDS = 0.5
"""Seconds between two looks of a paused run for runs that wait for its device."""
IDLE_SECONDS = 600.0
"""Seconds for which a paused run keeps its process. Then it saves its state and ends; resuming starts a new process."""


class CommandLoop:
    """Connects a run, or all models of a sweep, with the run store. Only a run of one model can pause."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        self.store, self.entry = store, entry
        self.runs: dict[str, Run] = {}
        """What is trained, by the ids in the run store; ended models of a sweep too."""
        self.left: set[str] = set()
        """The models that have ended."""
        self.reason = "stopped"
        """The state of the run when it is stopped."""
        self.interrupted = False
        self.paused = False
        self.steps_allowed = 0
        self.unwritten: list[tuple[str, dict[str, Any]]] = []
        self.looked = self.written = self.save_at = self.looked_around = self.paused_since = 0.0
        self.written_step = 0
        self.steps_per_second = 0.0
        self.figures: dict[str, float] = {}
        self.full = ""
        """The last message about a full disk quota."""

    def drives(self, runs: dict[str, Run]) -> None:
        """Set the models that are trained, and record this process."""
        self.runs = runs
        self.written, self.written_step = time.monotonic(), sum(run.step for run in runs.values())
        self.save_at = self.written + SAVE_SECONDS
        self.store.change(self.entry.id, pid=os.getpid())

    def interrupt(self, *_: object) -> None:
        """Stop before the next step, as a handler of the signal with which the system ends the process."""
        self.interrupted = True

    def report(self, run: str, row: dict[str, Any]) -> None:
        """Keep a row of metrics of a model for the next write."""
        self.unwritten.append((run, row))

    def between(self) -> None:
        """Do what is due before a step. Raises `Stopped` when the run is to end here."""
        self._check_interrupt()
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            if self.unwritten:
                self.runs[self.unwritten[0][0]].take_room(len(json.dumps(self.unwritten)), "A report of this run")
            self.flush()
        if now - self.looked >= LOOK_SECONDS or self.paused:
            self.looked = now
            self._obey()
        if self.paused:
            self._wait(self.runs[self.entry.id])
        elif now >= self.save_at:
            self._save()

    def flush(self) -> None:
        """Write the metrics and the position. Raises `RunStoreError` when another process has the run."""
        with self.store.database.writing() as db:
            self._write_down(db)

    def position(self) -> dict[str, Any]:
        """Return step and seconds as columns of the run store; empty before `drives`."""
        if not self.runs:
            return {}
        steps, seconds = zip(*((run.step, run.seconds) for run in self.runs.values()), strict=True)
        return {"step": max(steps), "seconds": sum(seconds)}

    def _check_interrupt(self) -> None:
        if self.interrupted:
            self.reason = "interrupted"
            raise Stopped

    def _save(self) -> None:
        """Save the states, except where a weight is not a number: then the last good state stays, and the next step raises."""
        for name, run in self.runs.items():
            if name not in self.left and run.has_finite_weights():
                run.save_state()
        self.save_at = time.monotonic() + SAVE_SECONDS

    def _write_down(self, db: Any) -> None:
        """Write in a given transaction, so that a change of state belongs to this step."""
        owned_entry(db, self.entry)
        now, steps = time.monotonic(), sum(run.step for run in self.runs.values())
        if steps > self.written_step:
            self.steps_per_second = (steps - self.written_step) / max(1e-9, now - self.written)
        live = {"steps_per_second": self.steps_per_second}
        if run := self.runs.get(self.entry.id):
            if run.window.steps:
                self.figures = {"loss": run.window.last_loss, "gradient_norm": run.window.gradient_norm}
            elif self.unwritten:  # the window is empty after a report
                self.figures = {name: self.unwritten[-1][1][name] for name in ("loss", "gradient_norm")}
            live |= self.figures | {"learning_rate": learning_rate(run.config, max(1, run.step))}
        for name, row in self.unwritten:
            insert_rows(db, name, [row])
        set_columns(db, self.entry.id, **self.position(), live=json.dumps(live), unreported_starts=0)
        self.unwritten = []
        self.written, self.written_step = now, steps

    def _obey(self) -> None:
        with self.store.database.reading() as db:
            waiting = db.execute("SELECT 1 FROM commands WHERE run = ? LIMIT 1", (self.entry.id,)).fetchone()
        if waiting is None:
            return
        with self.store.database.writing() as db:
            self._write_down(db)
            found = db.execute("SELECT * FROM commands WHERE run = ? ORDER BY number", (self.entry.id,)).fetchall()
            for command in found:
                self._carry_out(db, command["kind"], command["value"])
            # A stop stays in the run store until the run has stopped: if this process hangs, it is the reason for killing it.
            # A sweep forgets it, as saving all models may take longer.
            kept = "stop" if self.entry.sweep is None else ""
            db.execute("DELETE FROM commands WHERE run = ? AND kind != ?", (self.entry.id, kept))
        if any(command["kind"] == "stop" for command in found):
            self.reason = "stopped"
            raise Stopped

    def _carry_out(self, db: Any, kind: str, value: float | None) -> None:
        entry, run = entry_of(db, self.entry.id), self.runs.get(self.entry.id)
        if run is None:  # a sweep can only stop
            return
        if kind == "pause" and not self.paused:
            self.paused, self.steps_allowed = True, 0
            self.paused_since = time.monotonic()
            move(db, entry, "paused")
        elif kind == "resume" and self.paused:
            self.paused = False
            move(db, entry, "running", message=self._without_full(entry))
        elif kind == "step" and self.paused:
            self.paused_since = time.monotonic()
            self.steps_allowed += 1
            set_columns(db, entry.id, message=self._without_full(entry))
        elif kind == "rate" and value is not None and change_peak(db, entry.id, run.step, value):
            run.change_rate(value)

    def _wait(self, run: Run) -> None:
        """Wait until the run may go on, for one step or for good."""
        try:
            run.keep_snapshot()
            self._save()
        except QuotaExceededError as error:  # it waits all the same, with its state in memory
            self.full = str(error)
            self.store.change(self.entry.id, message=self.full)
        self.flush()
        while self.paused and not self.steps_allowed:
            self._check_interrupt()
            if time.monotonic() - self.looked_around >= ROOM_SECONDS and self._should_make_room():
                self.reason = "paused"
                raise Stopped
            time.sleep(PAUSE_SECONDS)
            self._obey()
        self.steps_allowed = max(0, self.steps_allowed - 1)
        self.written, self.written_step = time.monotonic(), run.step

    def _without_full(self, entry: Entry) -> str:
        """Return the message of a run, without one about the disk quota."""
        return "" if entry.message == self.full else entry.message

    def _should_make_room(self) -> bool:
        """Return whether another run waits for the device, or the pause has lasted for long."""
        self.looked_around = time.monotonic()
        others = [entry for entry in self.store.entries() if entry.id != self.entry.id]
        wanted = jobs.next_for(self.entry.device or jobs.CPU, others, jobs.devices())
        return bool(wanted) or time.monotonic() - self.paused_since > IDLE_SECONDS


MOST_SECONDS = 30.0
"""Seconds after which scoring ends, over fewer examples."""


class Scoring:
    """Writes the progress of `evaluate` into the run store, and ends it early; see `Watch`."""

    def __init__(self, command_loop: CommandLoop) -> None:
        self.command_loop = command_loop
        self.began, self.written = time.monotonic(), 0.0
        self.ended = ""
        """Why scoring ended early, as one sentence; empty if it did not."""

    def __call__(self, done: int, samples: int) -> bool:
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            self.written = now
            with self.command_loop.store.database.writing() as db:
                entry = owned_entry(db, self.command_loop.entry)
                set_columns(db, entry.id, live=json.dumps(entry.live | {SCORING: [done, samples, now - self.began]}))
                is_to_stop = has_stop(db, entry.id)
            if is_to_stop or self.command_loop.interrupted:
                self.ended = "Its scoring was ended early."
        if done < samples and now - self.began >= MOST_SECONDS:
            self.ended = f"Its scoring was ended after {MOST_SECONDS:.0f} s."
        return not self.ended


NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Parts of PyTorch's messages when the processor's memory is used up."""

GOES_ON = " Resume goes on from there."


class GpuGoneError(Exception):
    """The GPU of the run does not exist."""


def failure(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """Return the state of the run after an error, and its message. One that lost its GPU waits for the processor."""
    if isinstance(error, XformerError):
        return "failed", f"{error}{GOES_ON if isinstance(error, QuotaExceededError) else ''}"
    with suppress(OSError, MemoryError):  # a full disk has no space for the log either
        traceback.print_exception(error)
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError | GpuGoneError) and entry.device != "cpu":
        store.change(entry.id, wanted="cpu")
        why = "ran out of memory" if isinstance(error, torch.OutOfMemoryError) else "was lost"
        then = "so this run goes on on the processor from the last state it kept"
        return "queued", f"The GPU ({entry.device}) {why}, {then}."
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "The disk is full" if is_full else f"A file could not be written ({error.strerror or error})"
        return "failed", f"{what}; what was kept before is whole.{GOES_ON}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY):
        batch = entry.settings().train.batch_size
        how = f"try a smaller batch (it was {batch}, try {max(1, batch // 4)}) or a smaller model"
        return "failed", f"It ran out of memory at step {store.entry(entry.id).step}; {how}."
    return "failed", f"It failed for a reason of its own ({type(error).__name__})."
