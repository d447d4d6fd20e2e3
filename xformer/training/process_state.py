"""Whether a run has a process, how it ended where it has none any more, and the end of one that does not obey."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

from xformer.training import liveness
from xformer.training.entry import Entry
from xformer.training.run_statements import entry_of, move
from xformer.training.run_store import RunStore

LOCK = "worker.lock"
STOP_SECONDS = 3.0
"""Seconds that a worker has to obey a stop before it is killed; what it kept last is whole."""
KILL_SECONDS = 0.5
"""Seconds that a killed process may take to be gone."""
HALTED = "Its process is halted by a signal and takes no step until it is continued; Stop ends it."


def with_process_state(store: RunStore, entry: Entry) -> Entry:
    """An entry as its process stands at this moment: the run store may say so later only, or never while the disk is full."""
    file = store.folder_of(entry.id) / LOCK
    if not entry.is_active or not file.is_file():
        return entry
    if liveness.is_held(file):
        pid = liveness.holder(file)
        return entry.but(message=HALTED) if pid is not None and liveness.is_halted(pid) else entry
    with store.database.reading() as db:
        now = entry_of(db, entry.id)
        if now.worker != entry.worker:  # it has said so meanwhile
            return now
        state, message = _how_it_ended(db, now, file)
    return now.but(state=state, message=message, worker=None, pid=None)


def mark_dead(store: RunStore, entry: Entry) -> None:
    """Write down that a run's process is gone; kill one that was told to stop long ago."""
    file = store.folder_of(entry.id) / LOCK
    lock = liveness.take(file)
    if lock is None and _kill_unresponsive(store, entry, file):
        lock = liveness.take_within(file, KILL_SECONDS)
    if lock is None:
        return
    try:
        with store.database.writing() as db:
            now = entry_of(db, entry.id)
            if now.worker == entry.worker and now.is_active:
                state, message = _how_it_ended(db, now, file)
                move(db, now, state, worker=None, pid=None, message=message)
                db.execute("DELETE FROM commands WHERE run = ?", (now.id,))
    finally:
        os.close(lock)


def _how_it_ended(db: sqlite3.Connection, entry: Entry, file: Path) -> tuple[str, str]:
    """The state of a run whose process has ended without the run store knowing, and what there is to say about it."""
    told = db.execute("SELECT 1 FROM commands WHERE run = ? AND kind = 'stop'", (entry.id,)).fetchone()
    how = liveness.last_words(file)
    if not how:
        how = (
            "Its process ended before it had answered."
            if told
            else "Its process ended without a word: killed, out of memory, or the machine was restarted."
        )
    return "stopped" if told else "interrupted", f"{how} Resume goes on from the last state it kept."


def _kill_unresponsive(store: RunStore, entry: Entry, file: Path) -> bool:
    """Kill the process of a run that was told to stop long ago, also one that hangs before it has begun; say whether."""
    with store.database.reading() as db:
        told = db.execute(
            "SELECT min(sent) AS sent FROM commands WHERE run = ? AND kind = 'stop'", (entry.id,)
        ).fetchone()
        is_the_same = entry_of(db, entry.id).worker == entry.worker
    pid = liveness.holder(file)
    if not is_the_same or told["sent"] is None or time.monotonic() - told["sent"] < STOP_SECONDS or pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
