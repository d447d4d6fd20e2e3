"""Whether a run has a process, how it ended where it has none any more, and the end of one that does not obey."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
from pathlib import Path

from xformer.training import liveness
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore, entry_of, move

LOCK = "worker.lock"
STOP_SECONDS = 3.0
"""Seconds that a worker has to obey a stop before it is killed; what it kept last is whole."""
KILL_SECONDS = 0.5
"""Seconds that a killed process may take to be gone."""
RESTARTED = "The worker stopped before its first report; the run was started again."
STOPPED_EARLY = "The worker stopped before its first report."
STOPPED_TWICE = "The worker stopped before its first report, and so did the one that was started in its place."
ENDED = "ended without a word: killed, out of memory, or the machine was restarted."
HALTED = "Its process is halted by a signal and takes no step until it is continued; Stop ends it."
_watch = liveness.SilenceWatch()


def first_report_seconds() -> float:
    """Return how long a worker may show no sign of life before its first report: XFORMER_FIRST_REPORT_SECONDS, else 5."""
    asked = os.environ.get("XFORMER_FIRST_REPORT_SECONDS", "")
    is_number = re.fullmatch(r"\d{1,6}(\.\d+)?", asked, re.ASCII) is not None
    return float(asked) if is_number and float(asked) > 0 else 5.0


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
    """Write down that a run's process is gone; kill one that was told to stop long ago, or that never begins.

    A run whose worker stopped before its first report waits for another one; where that one stops too, the run has failed.
    """
    file = store.folder_of(entry.id) / LOCK
    lock, how = liveness.take(file), ""
    if lock is None and (how := _kill_unresponsive(store, entry, file)):
        lock = liveness.take_within(file, KILL_SECONDS)
    if lock is None:
        return
    _watch.forget(entry.worker or "")
    try:
        with store.database.writing() as db:
            now = entry_of(db, entry.id)
            if now.worker == entry.worker and now.is_active:
                state, message = _how_it_ended(db, now, file, how or ENDED)
                move(db, now, state, worker=None, pid=None, message=message)
                db.execute("DELETE FROM commands WHERE run = ?", (now.id,))
    finally:
        os.close(lock)


def _how_it_ended(db: sqlite3.Connection, entry: Entry, file: Path, how: str = ENDED) -> tuple[str, str]:
    """The state of a run whose process has ended without the run store knowing, and what there is to say about it."""
    told = db.execute("SELECT 1 FROM commands WHERE run = ? AND kind = 'stop'", (entry.id,)).fetchone()
    words = liveness.last_words(file)
    if told or words or not entry.unreported_starts:
        words = words or ("Its process ended before it had answered." if told else f"Its process {how}")
        return "stopped" if told else "interrupted", f"{words} Resume goes on from the last state it kept."
    if entry.unreported_starts == 1:
        return "queued", STOPPED_EARLY
    return "failed", f"{STOPPED_TWICE} That one {how} Its log, worker.log, may say more; Resume starts it once more."


def _kill_unresponsive(store: RunStore, entry: Entry, file: Path) -> str:
    """Kill the process of a run that was told to stop long ago, or that never begins; say what became of it."""
    with store.database.reading() as db:
        told = db.execute(
            "SELECT min(sent) AS sent FROM commands WHERE run = ? AND kind = 'stop'", (entry.id,)
        ).fetchone()["sent"]
        now = entry_of(db, entry.id)
    pid = liveness.holder(file)
    if now.worker is None or now.worker != entry.worker or pid is None:
        return ""
    if told is not None and time.monotonic() - told >= STOP_SECONDS:
        how = "was killed, as it did not obey."
    elif now.unreported_starts and _watch.seconds(now.worker, pid) >= (seconds := first_report_seconds()):
        how = f"showed no sign of life for {seconds:g} s and was killed."
    else:
        return ""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return ""
    return how
