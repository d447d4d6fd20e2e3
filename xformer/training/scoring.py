"""What a worker does while it scores the run that it has trained: say how far it is, and end it when it is told or takes long.

The weights are safe by then, so ending it costs nothing but a sharper figure.
"""

from __future__ import annotations

import json
import time

from xformer.errors import RunStoreError
from xformer.training.command_loop import CommandLoop
from xformer.training.entry import SCORING, Entry
from xformer.training.run_store import RunStore, entry_of, set_columns
from xformer.training.sweep_loop import SweepLoop

MOST_SECONDS = 30.0
"""A score that takes longer is taken over fewer examples."""
WRITE_SECONDS = 0.25


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
