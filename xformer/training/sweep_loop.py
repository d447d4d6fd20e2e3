"""What the worker of a sweep does between two steps: look for a stop, and write down how far all of its models are.

Many models cannot be paused one step at a time: they are stopped, and resuming goes on from there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from xformer.errors import RunStoreError
from xformer.training import command_loop
from xformer.training.entry import Entry
from xformer.training.loop import Run, Stopped
from xformer.training.run_store import RunStore, entry_of, insert_rows, set_columns


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
        self.written_step, self.save_at = self._steps(), self.written + command_loop.SAVE_SECONDS
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
        if now - self.written >= command_loop.WRITE_SECONDS:
            self.flush()
        if self.interrupted or (now - self.looked >= command_loop.LOOK_SECONDS and self._is_told_to_stop()):
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
        self.save_at = now + max(command_loop.SAVE_SECONDS, (now - began) / command_loop.SAVE_SHARE)

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
