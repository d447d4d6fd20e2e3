"""A training of another program as a run of the run store, so that the app shows it while it goes on and can stop it."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from xformer.presets import Preset
from xformer.training import liveness
from xformer.training.entry import ELSEWHERE
from xformer.training.run_store import RunStore, entry_of, insert_rows, move, set_columns


class OutsideRun:
    """A run that this process writes, under a lock that ends with the process.

    Args:
        store: The store that gets the run.
        settings: What the run is listed under; its title is the run's name.
    """

    def __init__(self, store: RunStore, settings: Preset) -> None:
        self.store = store
        self.id = store.add(settings, name=settings.title, owner="here", device=ELSEWHERE, state="stopped")
        self.folder = store.folder_of(self.id)
        self._lock = liveness.take(self.folder / liveness.LOCK)
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._began

    def start(self) -> None:
        """List the run as running."""
        with self.store.database.writing() as db:
            move(db, entry_of(db, self.id), "queued")
            move(db, entry_of(db, self.id), "running", worker=secrets.token_hex(8), device=ELSEWHERE, pid=os.getpid())

    def write(self, row: Mapping[str, Any], live: Mapping[str, float]) -> None:
        """Append a row of metrics, with its `step` and `seconds`; `live` is shown beside the run, as is a note of the row."""
        message = {"message": row["note"][:500]} if row["note"] else {}
        with self.store.database.writing() as db:
            insert_rows(db, self.id, [dict(row)])
            set_columns(db, self.id, step=row["step"], seconds=row["seconds"], live=json.dumps(live), **message)

    def take_commands(self) -> set[str]:
        """The kinds of the commands that the app has sent since the last call."""
        with self.store.database.writing() as db:
            kinds = {line["kind"] for line in db.execute("SELECT kind FROM commands WHERE run = ?", (self.id,))}
            db.execute("DELETE FROM commands WHERE run = ?", (self.id,))
        return kinds

    def leave(self, state: str) -> None:
        """Record the end of the run and release its lock; a second call does nothing."""
        if self._lock is None:
            return
        with self.store.database.writing() as db:
            move(db, entry_of(db, self.id), state, worker=None, pid=None)
        os.close(self._lock)
        self._lock = None
