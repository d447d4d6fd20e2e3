"""What a worker does between two steps: look for commands, wait while it is paused, and write down how far it is.

It looks ten times a second and writes four times a second; between two looks it costs the reading of a clock. Every half a
minute it writes down the state to go on from, however rare the snapshots are: so much is lost at worst to a power cut.
"""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from collections.abc import Callable
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
"""How often the state is written."""
SAVE_SHARE = 0.02
"""Not more than this share of the time is spent on it."""
PAUSE_SECONDS = 0.05
"""How often a paused run looks for commands."""
ROOM_SECONDS = 0.5
"""How often a paused run looks whether somebody else waits for its device."""
IDLE_SECONDS = 600.0
"""A paused run keeps its process so long; then it saves, ends, and needs a new one to go on."""


class CommandLoop:
    """Stands between a run and the run store."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        self.store, self.entry = store, entry
        self.run: Run | None = None
        self.reason = "stopped"
        """The state that a stopped run is in."""
        self.paused = False
        self.steps_allowed = 0
        self.unwritten: list[dict[str, Any]] = []
        self.looked = self.looked_around = self.written = self.paused_since = 0.0
        self.save_at = 0.0
        self.written_step = 0
        self.steps_per_second = 0.0
        self.figures: dict[str, float] = {}
        self.solved = False
        """Whether a report has said that everything is right."""
        self.is_awaited = False
        """Whether what is unwritten is to be written now."""
        self.interrupted = False
        self.full = ""
        """What was said last about a disk without room."""

    def drives(self, run: Run) -> None:
        """From now on this is the run that is meant."""
        self.run, self.written_step, self.written = run, run.step, time.monotonic()
        self.save_at = self.written + SAVE_SECONDS
        self.store.change(self.entry.id, pid=os.getpid())

    def interrupt(self) -> None:
        """The system asks the process to end: stop before the next step."""
        self.interrupted = True

    def report(self, row: dict[str, Any]) -> None:
        """A row of metrics, to be written with the next writing; the first without a mistake, which is waited for, at once."""
        self.unwritten.append(row)
        if row["held_out_exact_match"] == 1.0 and not self.solved:
            self.solved = self.is_awaited = True

    def between(self) -> None:
        """Called before every step. Raises `Stopped` when the run is to end here."""
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
            self._save_state()

    def flush(self) -> None:
        """Write down the metrics and where the run stands. Raises `RunStoreError` when it is this process's run no longer."""
        with self.store.database.writing() as db:
            self._write_down(db)

    def position(self) -> dict[str, Any]:
        """Where the run stands, as columns of the run store; nothing before there is a run."""
        return {} if self.run is None else {"step": self.run.step, "seconds": self.run.seconds}

    def _write_down(self, db: Any) -> None:
        """The same within a transaction, so that a state that is written with it belongs to this very step."""
        run = self.run
        assert run is not None
        if entry_of(db, self.entry.id).worker != self.entry.worker:
            raise RunStoreError(f"The run “{self.entry.name}” has been given to another process.")
        now = time.monotonic()
        if run.step > self.written_step:
            self.steps_per_second = (run.step - self.written_step) / max(1e-9, now - self.written)
        if run.window.steps:
            self.figures = {"loss": run.window.last_loss, "gradient_norm": run.window.gradient_norm}
        elif self.unwritten:  # just reported: the window is empty
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
            # A stop stays in the run store until the run has stopped: should this process hang, it says why it was killed.
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
        """Stay here until the run may go on, for one step or for good."""
        run = self.run
        assert run is not None
        try:
            run.keep_snapshot()
            self._save_state()
        except QuotaExceededError as error:  # it waits all the same: what it has done stands in memory
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
        """The message of a run, unless it is that there was no room."""
        return "" if entry.message == self.full else entry.message

    def _save_state(self) -> None:
        """Write down the state, unless its weights are no numbers: then the last good one stays, and the next step says so."""
        run = self.run
        assert run is not None
        began = time.monotonic()
        if run.has_finite_weights():
            run.save_state()
        now = time.monotonic()
        self.save_at = now + max(SAVE_SECONDS, (now - began) / SAVE_SHARE)

    def _should_make_room(self) -> bool:
        """Whether somebody waits for the device, or nobody has come back for long, and no command is under way."""
        self.looked_around = time.monotonic()
        entries = self.store.entries()
        device = self.entry.device or dispatch.CPU
        others = [entry for entry in entries if entry.id != self.entry.id]
        wanted = dispatch.next_for(device, others, dispatch.devices())
        return bool(wanted) or time.monotonic() - self.paused_since > IDLE_SECONDS


class SweepLoop:
    """Stands between the models of a sweep and the run store; what a `CommandLoop` is to one run."""

    def __init__(self, store: RunStore, entry: Entry) -> None:
        self.store, self.entry = store, entry
        self.runs: dict[str, Run] = {}
        """The models, by their ids; those that have left the stack too."""
        self.left: set[str] = set()
        self.reason = "stopped"
        self.interrupted = False
        self.at_each_step: Callable[[], object] = lambda: None
        self.unwritten: list[tuple[str, dict[str, Any]]] = []
        self.looked = self.written = 0.0
        self.save_at = 0.0
        self.written_step = 0

    def drives(self, runs: dict[str, Run]) -> None:
        """From now on these are the models that are meant."""
        self.runs, self.written = runs, time.monotonic()
        self.written_step, self.save_at = self._steps(), self.written + SAVE_SECONDS
        self.store.change(self.entry.id, pid=os.getpid())

    def interrupt(self) -> None:
        """The system asks the process to end: stop before the next step."""
        self.interrupted = True

    def report(self, member: str, row: dict[str, Any]) -> None:
        """A row of metrics of a model, to be written with the next writing."""
        self.unwritten.append((member, row))

    def between(self) -> None:
        """Called before every step. Raises `Stopped` when all are to end here."""
        self.at_each_step()
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            self.flush()
        if self.interrupted or (now - self.looked >= LOOK_SECONDS and self._is_told_to_stop()):
            self.reason = "interrupted" if self.interrupted else "stopped"
            raise Stopped
        if now >= self.save_at:
            self.save()

    def save(self) -> None:
        """Write down where the models stand that go on."""
        began = time.monotonic()
        for member, run in self.runs.items():
            if member not in self.left and run.has_finite_weights():
                run.save_state()
        now = time.monotonic()
        self.save_at = now + max(SAVE_SECONDS, (now - began) / SAVE_SHARE)

    def position(self) -> dict[str, Any]:
        """How far they are, as columns of the run store: the step of the foremost, and the seconds of all together."""
        if not self.runs:
            return {}
        return {
            "step": max(run.step for run in self.runs.values()),
            "seconds": sum(run.seconds for run in self.runs.values()),
        }

    def flush(self) -> None:
        """Write down metrics and where they stand. Raises `RunStoreError` when it is this process's sweep no longer."""
        now = time.monotonic()
        with self.store.database.writing() as db:
            if entry_of(db, self.entry.id).worker != self.entry.worker:
                raise RunStoreError(f"The run “{self.entry.name}” has been given to another process.")
            for member, row in self.unwritten:
                insert_rows(db, member, [row])
            rate = (self._steps() - self.written_step) / max(1e-9, now - self.written)
            live = {"steps_per_second": max(0.0, rate)}
            set_columns(db, self.entry.id, **self.position(), live=json.dumps(live), unreported_starts=0)
        self.unwritten = []
        self.written, self.written_step = now, self._steps()

    def _steps(self) -> int:
        """The steps of all models together."""
        return sum(run.step for run in self.runs.values())

    def _is_told_to_stop(self) -> bool:
        """Whether somebody has; from then on it takes as long as it takes to keep all models."""
        self.looked = time.monotonic()
        with self.store.database.reading() as db:
            query = "SELECT 1 FROM commands WHERE run = ? AND kind = 'stop' LIMIT 1"
            if db.execute(query, (self.entry.id,)).fetchone() is None:
                return False
        with self.store.database.writing() as db:
            db.execute("DELETE FROM commands WHERE run = ?", (self.entry.id,))
        return True


MOST_SECONDS = 30.0
"""A score that takes longer is taken over fewer examples."""


class Scoring:
    """Stands between `evaluate` and the run store; see `Watch`."""

    def __init__(self, store: RunStore, entry: Entry, command_loop: CommandLoop | SweepLoop) -> None:
        self.store, self.entry, self.command_loop = store, entry, command_loop
        self.began, self.written = time.monotonic(), 0.0
        self.ended = ""
        """Why it was ended early, as a sentence; nothing where it was not."""

    def __call__(self, done: int, samples: int) -> bool:
        now = time.monotonic()
        if now - self.written >= WRITE_SECONDS:
            self.written = now
            is_told = self._write_down(done, samples, now - self.began)
            if is_told or self.command_loop.interrupted:
                self.ended = "Its scoring was ended early."
        if done < samples and now - self.began >= MOST_SECONDS:
            self.ended = f"Its scoring was ended after {MOST_SECONDS:.0f} s."
        return not self.ended

    def _write_down(self, done: int, samples: int, seconds: float) -> bool:
        """Say how far it is; whether it was told to stop. Raises `RunStoreError` when it is this process's run no longer."""
        run = self.entry.id
        with self.store.database.writing() as db:
            entry = entry_of(db, run)
            if entry.worker != self.entry.worker:
                raise RunStoreError(f"The run “{entry.name}” has been given to another process.")
            set_columns(db, run, live=json.dumps(entry.live | {SCORING: [done, samples, seconds]}))
            found = db.execute("SELECT 1 FROM commands WHERE run = ? AND kind = 'stop'", (run,)).fetchone()
        return found is not None


NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""How torch says on a processor that there is none left; it also speaks of the format of memory, and of pinned memory."""

GOES_ON = " Resume goes on from there."


class GpuGoneError(Exception):
    """The GPU that the run was given is not there."""


def failure(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """The state that the run is in after that error, and its message."""
    if isinstance(error, QuotaExceededError):
        return "failed", f"{error}{GOES_ON}"
    if isinstance(error, XformerError):
        return "failed", str(error)
    if isinstance(error, MemoryError):
        return "failed", _too_big(store, entry)
    with suppress(OSError):  # a full disk takes no log either
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
    """A run that lost its GPU waits for the processor."""
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
