"""The work of a worker between training steps: handle commands, wait while paused, write metrics, save the state, score.

Commands are read ten times per second and metrics are written four times per second; otherwise a step costs only a clock
reading. The state to resume from is saved every 30 seconds, independently of the snapshots.
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
from xformer.training.loop import Run, Stopped
from xformer.training.recipe import learning_rate
from xformer.training.run_record import SCORING, RunRecord
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
"""Interval in seconds at which the state to resume from is saved."""
PAUSE_SECONDS = 0.05
"""Interval in seconds at which a paused run checks for commands."""
ROOM_SECONDS = 0.5
"""Interval in seconds at which a paused run checks whether other runs wait for its device."""
IDLE_SECONDS = 600.0
"""Seconds after which the process of a paused run saves its state and exits. Resuming starts a new process."""


class CommandLoop:
    """Connects a training run, or all models of a sweep, to the run store. A sweep cannot pause."""

    def __init__(self, store: RunStore, entry: RunRecord) -> None:
        self.store, self.entry = store, entry
        self.runs: dict[str, Run] = {}
        """The models in training by their ids in the run store, including models of a sweep that have ended."""
        self.ended: set[str] = set()
        """The ids of the models that have ended."""
        self.reason = "stopped"
        """The state to record when `Stopped` ends the run."""
        self.interrupted = False
        self.paused = False
        self.steps_allowed = 0
        self.unwritten: list[tuple[str, dict[str, Any]]] = []
        self.commands_checked = self.written = self.save_at = self.queue_checked = self.paused_since = 0.0
        self.written_step = 0
        self.steps_per_second = 0.0
        self.figures: dict[str, float] = {}
        self.quota_message = ""
        """The last message about an exceeded disk quota."""

    def attach(self, runs: dict[str, Run]) -> None:
        """Set the models to train, and record the id of this process."""
        self.runs = runs
        self.written, self.written_step = time.monotonic(), sum(run.step for run in runs.values())
        self.save_at = self.written + SAVE_SECONDS
        self.store.change(self.entry.id, pid=os.getpid())

    def interrupt(self, *_: object) -> None:
        """Handle SIGTERM: stop before the next step."""
        self.interrupted = True

    def report(self, run: str, row: dict[str, Any]) -> None:
        """Queue a row of a model's metrics for the next write."""
        self.unwritten.append((run, row))

    def between(self) -> None:
        """Do the work that is due before a step. Raises `Stopped` to end the run at this step."""
        self._check_interrupt()
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            if self.unwritten:
                self.runs[self.unwritten[0][0]].reserve_disk(len(json.dumps(self.unwritten)), "A report of this run")
            self.flush()
        if now - self.commands_checked >= LOOK_SECONDS or self.paused:
            self.commands_checked = now
            self._handle_commands()
        if self.paused:
            self._wait(self.runs[self.entry.id])
        elif now >= self.save_at:
            self._save()

    def flush(self) -> None:
        """Write the queued metrics and the current step. Raises `RunStoreError` if another process has the run."""
        with self.store.database.writing() as db:
            self._write(db)

    def position(self) -> dict[str, Any]:
        """Return the step and the training seconds as columns of the run store; empty before `attach` is called."""
        if not self.runs:
            return {}
        steps, seconds = zip(*((run.step, run.seconds) for run in self.runs.values()), strict=True)
        return {"step": max(steps), "seconds": sum(seconds)}

    def _check_interrupt(self) -> None:
        if self.interrupted:
            self.reason = "interrupted"
            raise Stopped

    def _save(self) -> None:
        """Save the state of each model. With non-finite weights the last good state is kept, and the next step raises."""
        for name, run in self.runs.items():
            if name not in self.ended and run.has_finite_weights():
                run.save_state()
        self.save_at = time.monotonic() + SAVE_SECONDS

    def _write(self, db: Any) -> None:
        """Write metrics and step in the caller's transaction, so that a change of state is recorded with its step."""
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

    def _handle_commands(self) -> None:
        with self.store.database.reading() as db:
            waiting = db.execute("SELECT 1 FROM commands WHERE run = ? LIMIT 1", (self.entry.id,)).fetchone()
        if waiting is None:
            return
        with self.store.database.writing() as db:
            self._write(db)
            found = db.execute("SELECT * FROM commands WHERE run = ? ORDER BY number", (self.entry.id,)).fetchall()
            for command in found:
                self._execute(db, command["kind"], command["value"])
            # A stop command stays in the run store until the run has stopped, so that this process is killed if it hangs.
            # For a sweep it is deleted, because saving all models may take longer than the timeout.
            kept = "stop" if self.entry.sweep is None else ""
            db.execute("DELETE FROM commands WHERE run = ? AND kind != ?", (self.entry.id, kept))
        if any(command["kind"] == "stop" for command in found):
            self.reason = "stopped"
            raise Stopped

    def _execute(self, db: Any, kind: str, value: float | None) -> None:
        entry, run = entry_of(db, self.entry.id), self.runs.get(self.entry.id)
        if run is None:  # a sweep only supports stop
            return
        if kind == "pause" and not self.paused:
            self.paused, self.steps_allowed = True, 0
            self.paused_since = time.monotonic()
            move(db, entry, "paused")
        elif kind == "resume" and self.paused:
            self.paused = False
            move(db, entry, "running", message=self._without_quota_message(entry))
        elif kind == "step" and self.paused:
            self.paused_since = time.monotonic()
            self.steps_allowed += 1
            set_columns(db, entry.id, message=self._without_quota_message(entry))
        elif kind == "rate" and value is not None and change_peak(db, entry.id, run.step, value):
            run.change_rate(value)

    def _wait(self, run: Run) -> None:
        """Wait until the run is resumed or may take a single step."""
        try:
            run.keep_snapshot()
            self._save()
        except QuotaExceededError as error:  # still pause; the state stays in memory
            self.quota_message = str(error)
            self.store.change(self.entry.id, message=self.quota_message)
        self.flush()
        while self.paused and not self.steps_allowed:
            self._check_interrupt()
            if time.monotonic() - self.queue_checked >= ROOM_SECONDS and self._should_yield():
                self.reason = "paused"
                raise Stopped
            time.sleep(PAUSE_SECONDS)
            self._handle_commands()
        self.steps_allowed = max(0, self.steps_allowed - 1)
        self.written, self.written_step = time.monotonic(), run.step

    def _without_quota_message(self, entry: RunRecord) -> str:
        """Return the message of a run, or "" if it is about the disk quota."""
        return "" if entry.message == self.quota_message else entry.message

    def _should_yield(self) -> bool:
        """Return whether another run waits for the device, or the pause has exceeded `IDLE_SECONDS`."""
        self.queue_checked = time.monotonic()
        others = [entry for entry in self.store.entries() if entry.id != self.entry.id]
        wanted = jobs.next_for(self.entry.device or jobs.CPU, others, jobs.devices())
        return bool(wanted) or time.monotonic() - self.paused_since > IDLE_SECONDS


MAX_SECONDS = 30.0
"""Seconds after which scoring ends early, with fewer examples."""


class Scoring:
    """A `Watch` for `evaluate` that writes the progress into the run store and can end the scoring early."""

    def __init__(self, command_loop: CommandLoop) -> None:
        self.command_loop = command_loop
        self.began, self.written = time.monotonic(), 0.0
        self.ended = ""
        """One sentence on why scoring ended early; empty if it did not."""

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
        if done < samples and now - self.began >= MAX_SECONDS:
            self.ended = f"Its scoring was ended after {MAX_SECONDS:.0f} s."
        return not self.ended


NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Parts of PyTorch's messages when the machine is out of memory."""

GOES_ON = " Resume continues from there."


class GpuGoneError(Exception):
    """The GPU of the run does not exist."""


def failure(store: RunStore, entry: RunRecord, error: Exception) -> tuple[str, str]:
    """Return the state and message of a run after an error. A run that lost its GPU is queued for the CPU."""
    if isinstance(error, XformerError):
        return "failed", f"{error}{GOES_ON if isinstance(error, QuotaExceededError) else ''}"
    with suppress(OSError, MemoryError):  # if the disk is full, the log cannot be written either
        traceback.print_exception(error)
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError | GpuGoneError) and entry.device != "cpu":
        store.change(entry.id, wanted="cpu")
        why = "ran out of memory" if isinstance(error, torch.OutOfMemoryError) else "was lost"
        return "queued", f"The GPU ({entry.device}) {why}, so this run continues on the CPU from its last saved state."
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "The disk is full" if is_full else f"A file could not be written ({error.strerror or error})"
        return "failed", f"{what}; everything saved before is intact.{GOES_ON}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY):
        batch = entry.settings().train.batch_size
        how = f"try a smaller batch (it was {batch}, try {max(1, batch // 4)}) or a smaller model"
        return "failed", f"The run ran out of memory at step {store.entry(entry.id).step}; {how}."
    return "failed", f"The run failed with an unexpected error ({type(error).__name__})."
