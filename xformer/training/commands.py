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
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch

from xformer.errors import ConfigError, QuotaExceededError, RunStoreError, XformerError
from xformer.training import dispatch
from xformer.training.entry import SCORING, Entry
from xformer.training.loop import Run, Stopped
from xformer.training.recipe import learning_rate
from xformer.training.run_store import RunStore, change_peak, entry_of, insert_rows, move, set_columns

LOOK_SECONDS = 0.1
WRITE_SECONDS = 0.25
SAVE_SECONDS = 30.0
"""Seconds between two saved states."""
SAVE_SHARE = 0.02
"""The largest share of the time that saving may take."""
PAUSE_SECONDS = 0.05
"""Seconds between two looks of a paused run for commands."""
ROOM_SECONDS = 0.5
"""Seconds between two looks of a paused run for runs that wait for its device."""
IDLE_SECONDS = 600.0
"""Seconds for which a paused run keeps its process. Then it saves its state and ends; resuming starts a new process."""


def owned(db: Any, entry: Entry) -> Entry:
    """Return a run as it stands in the store. Raises `RunStoreError` when another process has it."""
    found = entry_of(db, entry.id)
    if found.worker != entry.worker:
        raise RunStoreError(f"The run “{entry.name}” has been given to another process.")
    return found


class WorkerLoop:
    """What the loops of one run and of a sweep share: when they look, write and save, and why they end."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        self.store, self.entry = store, entry
        self.reason = "stopped"
        """The state of the run when it is stopped."""
        self.interrupted = False
        self.looked = self.written = self.save_at = 0.0
        self.written_step = 0

    def interrupt(self) -> None:
        """Stop before the next step, because the system ends the process."""
        self.interrupted = True

    def save(self) -> None:
        """Save the states, except where a weight is not a number: then the last good state stays, and the next step raises."""
        began = time.monotonic()
        for run in self.unfinished():
            if run.has_finite_weights():
                run.save_state()
        now = time.monotonic()
        self.save_at = now + max(SAVE_SECONDS, (now - began) / SAVE_SHARE)

    def unfinished(self) -> Iterable[Run]:
        """Return the models that are trained."""
        raise NotImplementedError

    def _begin(self, step: int) -> None:
        """Start the clocks, and record this process."""
        self.written, self.written_step = time.monotonic(), step
        self.save_at = self.written + SAVE_SECONDS
        self.store.change(self.entry.id, pid=os.getpid())


class CommandLoop(WorkerLoop):
    """Connects one run with the run store."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        super().__init__(store, entry)
        self.run: Run | None = None
        self.paused = False
        self.steps_allowed = 0
        self.unwritten: list[dict[str, Any]] = []
        self.looked_around = self.paused_since = 0.0
        self.steps_per_second = 0.0
        self.figures: dict[str, float] = {}
        self.solved = False
        """Whether a report has had an exact match of 1."""
        self.is_awaited = False
        """Whether the unwritten metrics are to be written at once."""
        self.full = ""
        """The last message about a full disk quota."""

    def drives(self, run: Run) -> None:
        """Set the run that is trained."""
        self.run = run
        self._begin(run.step)

    def unfinished(self) -> Iterable[Run]:
        return () if self.run is None else (self.run,)

    def report(self, row: dict[str, Any]) -> None:
        """Keep a row of metrics for the next write. The first row with an exact match of 1 is written at once."""
        self.unwritten.append(row)
        if row["held_out_exact_match"] == 1.0 and not self.solved:
            self.solved = self.is_awaited = True

    def between(self) -> None:
        """Do what is due before a step. Raises `Stopped` when the run is to end here."""
        if self.interrupted:
            self.reason = "interrupted"
            raise Stopped
        now = time.monotonic()
        if self.is_awaited or now - self.written >= WRITE_SECONDS:
            if self.unwritten and self.run is not None:
                self.run.take_room(len(json.dumps(self.unwritten)), "A report of this run")
            self.flush()
        if now - self.looked >= LOOK_SECONDS or self.paused:
            self.looked = now
            self._obey()
        if self.paused:
            self._wait()
        elif now >= self.save_at:
            self.save()

    def flush(self) -> None:
        """Write the metrics and the position. Raises `RunStoreError` when another process has the run."""
        with self.store.database.writing() as db:
            self._write_down(db)

    def position(self) -> dict[str, Any]:
        """Return step and seconds as columns of the run store; empty before `drives`."""
        return {} if self.run is None else {"step": self.run.step, "seconds": self.run.seconds}

    def _write_down(self, db: Any) -> None:
        """Do the same in a given transaction, so that a change of state belongs to this step."""
        run = self.run
        assert run is not None
        owned(db, self.entry)
        now = time.monotonic()
        if run.step > self.written_step:
            self.steps_per_second = (run.step - self.written_step) / max(1e-9, now - self.written)
        if run.window.steps:
            self.figures = {"loss": run.window.last_loss, "gradient_norm": run.window.gradient_norm}
        elif self.unwritten:  # the window is empty after a report
            self.figures = {name: self.unwritten[-1][name] for name in ("loss", "gradient_norm")}
        live = self.figures | {
            "learning_rate": learning_rate(run.config, max(1, run.step)),
            "steps_per_second": self.steps_per_second,
        }
        insert_rows(db, self.entry.id, self.unwritten)
        set_columns(db, self.entry.id, **self.position(), live=json.dumps(live), unreported_starts=0)
        self.unwritten, self.is_awaited = [], False
        self.written, self.written_step = now, run.step

    def _obey(self) -> None:
        run = self.run
        assert run is not None
        with self.store.database.reading() as db:
            waiting = db.execute("SELECT 1 FROM commands WHERE run = ? LIMIT 1", (self.entry.id,)).fetchone()
        if waiting is None:
            return
        with self.store.database.writing() as db:
            self._write_down(db)
            found = db.execute("SELECT * FROM commands WHERE run = ? ORDER BY number", (self.entry.id,)).fetchall()
            for command in found:
                self._carry_out(db, run, command["kind"], command["value"])
            # A stop stays in the run store until the run has stopped: if this process hangs, it is the reason for killing it.
            db.execute("DELETE FROM commands WHERE run = ? AND kind != 'stop'", (self.entry.id,))
        if any(command["kind"] == "stop" for command in found):
            self.reason = "stopped"
            raise Stopped

    def _carry_out(self, db: Any, run: Run, kind: str, value: float | None) -> None:
        entry = entry_of(db, self.entry.id)
        if kind == "pause" and not self.paused:
            self.paused, self.steps_allowed = True, 0
            self.paused_since = time.monotonic()
            move(db, entry, "paused")
        elif kind == "resume" and self.paused:
            self.paused = False
            move(db, entry, "running", message=self._without_full(entry))
        elif kind == "step" and self.paused:
            self.paused_since = time.monotonic()
            try:
                run.check_room_for_snapshot()
            except QuotaExceededError as error:
                self.full = f"No step was made. {error}"
                set_columns(db, entry.id, message=self.full)
            else:
                self.steps_allowed += 1
                set_columns(db, entry.id, message=self._without_full(entry))
        elif kind == "rate" and value is not None and change_peak(db, entry.id, run.step, value):
            run.change_rate(value)

    def _wait(self) -> None:
        """Wait until the run may go on, for one step or for good."""
        run = self.run
        assert run is not None
        try:
            run.keep_snapshot()
            self.save()
        except QuotaExceededError as error:  # it waits all the same, with its state in memory
            self.full = str(error)
            self.store.change(self.entry.id, message=self.full)
        self.flush()
        while self.paused and not self.steps_allowed:
            if self.interrupted:
                self.reason = "interrupted"
                raise Stopped
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
        entries = self.store.entries()
        device = self.entry.device or dispatch.CPU
        others = [entry for entry in entries if entry.id != self.entry.id]
        wanted = dispatch.next_for(device, others, dispatch.devices())
        return bool(wanted) or time.monotonic() - self.paused_since > IDLE_SECONDS


class SweepLoop(WorkerLoop):
    """Connects the models of a sweep with the run store, as a `CommandLoop` does with one run."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        super().__init__(store, entry)
        self.runs: dict[str, Run] = {}
        """All models by their ids, ended ones too."""
        self.left: set[str] = set()
        self.at_each_step: Callable[[], object] = lambda: None
        self.unwritten: list[tuple[str, dict[str, Any]]] = []

    def drives(self, runs: dict[str, Run]) -> None:
        """Set the models that are trained."""
        self.runs = runs
        self._begin(self._steps())

    def unfinished(self) -> Iterable[Run]:
        return (run for member, run in self.runs.items() if member not in self.left)

    def report(self, member: str, row: dict[str, Any]) -> None:
        """Keep a row of metrics of a model for the next write."""
        self.unwritten.append((member, row))

    def between(self) -> None:
        """Do what is due before a step. Raises `Stopped` when the sweep is to end here."""
        self.at_each_step()
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            self.flush()
        if self.interrupted or (now - self.looked >= LOOK_SECONDS and self._is_told_to_stop()):
            self.reason = "interrupted" if self.interrupted else "stopped"
            raise Stopped
        if now >= self.save_at:
            self.save()

    def position(self) -> dict[str, Any]:
        """Return the largest step and the sum of the seconds as columns of the run store."""
        if not self.runs:
            return {}
        return {
            "step": max(run.step for run in self.runs.values()),
            "seconds": sum(run.seconds for run in self.runs.values()),
        }

    def flush(self) -> None:
        """Write the metrics and the position. Raises `RunStoreError` when another process has the sweep."""
        now = time.monotonic()
        with self.store.database.writing() as db:
            owned(db, self.entry)
            for member, row in self.unwritten:
                insert_rows(db, member, [row])
            rate = (self._steps() - self.written_step) / max(1e-9, now - self.written)
            live = {"steps_per_second": max(0.0, rate)}
            set_columns(db, self.entry.id, **self.position(), live=json.dumps(live), unreported_starts=0)
        self.unwritten = []
        self.written, self.written_step = now, self._steps()

    def _steps(self) -> int:
        """Return the sum of the steps of all models."""
        return sum(run.step for run in self.runs.values())

    def _is_told_to_stop(self) -> bool:
        """Return whether a stop was sent. The command is removed, as saving all models may take longer than a stop."""
        self.looked = time.monotonic()
        with self.store.database.reading() as db:
            query = "SELECT 1 FROM commands WHERE run = ? AND kind = 'stop' LIMIT 1"
            if db.execute(query, (self.entry.id,)).fetchone() is None:
                return False
        with self.store.database.writing() as db:
            db.execute("DELETE FROM commands WHERE run = ?", (self.entry.id,))
        return True


MOST_SECONDS = 30.0
"""Seconds after which scoring ends, over fewer examples."""


class Scoring:
    """Writes the progress of `evaluate` into the run store, and ends it early; see `Watch`."""

    def __init__(self, store: RunStore, entry: Entry, command_loop: WorkerLoop) -> None:
        self.store, self.entry, self.command_loop = store, entry, command_loop
        self.began, self.written = time.monotonic(), 0.0
        self.ended = ""
        """Why scoring ended early, as one sentence; empty if it did not."""

    def __call__(self, done: int, samples: int) -> bool:
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            self.written = now
            is_stopped = self._write_down(done, samples, now - self.began)
            if is_stopped or self.command_loop.interrupted:
                self.ended = "Its scoring was ended early."
        if done < samples and now - self.began >= MOST_SECONDS:
            self.ended = f"Its scoring was ended after {MOST_SECONDS:.0f} s."
        return not self.ended

    def _write_down(self, done: int, samples: int, seconds: float) -> bool:
        """Write the progress. Returns whether a stop was sent. Raises `RunStoreError` when another process has the run."""
        run = self.entry.id
        with self.store.database.writing() as db:
            entry = owned(db, self.entry)
            set_columns(db, run, live=json.dumps(entry.live | {SCORING: [done, samples, seconds]}))
            found = db.execute("SELECT 1 FROM commands WHERE run = ? AND kind = 'stop'", (run,)).fetchone()
        return found is not None


NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Parts of PyTorch's messages when the processor's memory is used up."""

GOES_ON = " Resume goes on from there."


class GpuGoneError(Exception):
    """The GPU of the run does not exist."""


def failure(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """Return the state of the run after an error, and its message."""
    if isinstance(error, QuotaExceededError):
        return "failed", f"{error}{GOES_ON}"
    if isinstance(error, XformerError):
        return "failed", str(error)
    if isinstance(error, MemoryError):
        return "failed", _too_big(store, entry)
    with suppress(OSError):  # a full disk has no space for the log either
        traceback.print_exception(error)
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError | GpuGoneError) and entry.device != "cpu":
        return _without_gpu(store, entry, error)
    if isinstance(error, OSError):
        what = f"A file could not be written ({error.strerror or error})"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "failed", f"{'The disk is full' if is_full else what}; what was kept before is whole.{GOES_ON}"
    if isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    ):
        return "failed", _too_big(store, entry)
    return "failed", f"It failed for a reason of its own ({type(error).__name__})."


def _without_gpu(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """Queue a run that lost its GPU for the processor."""
    store.change(entry.id, wanted="cpu")
    why = "ran out of memory" if isinstance(error, torch.OutOfMemoryError) else "was lost"
    return (
        "queued",
        f"The GPU ({entry.device}) {why}, so this run goes on on the processor from the last state it kept.",
    )


def _too_big(store: RunStore, entry: Entry) -> str:
    try:
        batch = entry.settings().train.batch_size
    except ConfigError:
        batch = 1
    return (
        f"It ran out of memory at step {store.entry(entry.id).step}; try a smaller batch "
        f"(it was {batch}, try {max(1, batch // 4)}) or a smaller model."
    )
