"""Detect whether the process that trains a run is alive, by a lock file that the operating system releases when it ends.

The process that starts a worker takes the lock (`flock`) and passes it on as an open file, so a worker that is still starting
never looks dead. No heartbeat or wall clock is involved. The process id in the file is used only to kill the holder while the
lock is held.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import time
from pathlib import Path

from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, entry_of, has_stop, move

LENGTH = 512
"""Size in bytes of a lock file that holds a process id."""
LONGEST_LOOK = 1.0
"""Largest number of seconds of silence counted between two checks, because the checking process may have been halted itself."""


def take(path: Path) -> int | None:
    """Take the lock. Returns an open file descriptor, to be closed or passed on; None if the lock is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def take_within(path: Path, seconds: float) -> int | None:
    """Take the lock, waiting up to `seconds` for its holder to release it. Returns None on timeout."""
    deadline = time.monotonic() + seconds
    while (descriptor := take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return descriptor


def sign(descriptor: int, pid: int, last_words: str = "") -> None:
    """Write the holder's process id into the lock file and, if the run store cannot be written, why the holder ends.

    The file always has the same length, so this also succeeds on a full disk.
    """
    os.pwrite(descriptor, f"{pid}\n{last_words}".encode()[:LENGTH].ljust(LENGTH), 0)


def holder(path: Path) -> int | None:
    """Return the process id in the lock file; it is meaningful only while the lock is held."""
    number = _read(path).partition("\n")[0]
    return int(number) if number.isdecimal() else None


def last_words(path: Path) -> str:
    """Return the reason that the last holder wrote into the lock file before it ended; empty if it wrote none."""
    return _read(path).partition("\n")[2].strip()


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:LENGTH].decode(errors="ignore")
    except OSError:
        return ""


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock. Concurrent callers do not block each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def activity(pid: int) -> tuple[str, ...] | None:
    """Return the state, CPU time and context switches of a process; None on systems other than Linux.

    Two equal results mean that the process did nothing in between.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        switches = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]
        return stat[0], stat[11], stat[12], *switches
    except (OSError, IndexError):
        return None


last_looks: dict[str, tuple[float, tuple[str, ...] | None, float]] = {}
"""By worker token: the time of the last check, the activity seen, and the seconds of silence so far."""


def silent_seconds(worker: str, pid: int) -> float:
    """Return for how many seconds a process has shown no sign of life across the calls for this worker; 0 at the first call.

    A process is silent while it is halted, or sleeps without waking up. A process that computes, waits for a CPU or a disk, or
    polls is alive, so a slow start on a busy machine does not count as silence.
    """
    now, found = time.monotonic(), activity(pid)
    before, seen, silent = last_looks.get(worker, (now, None, 0.0))
    is_silent = found is not None and found[0] not in "RD" and found == seen
    silent = silent + min(now - before, LONGEST_LOOK) if is_silent else 0.0
    last_looks[worker] = now, found, silent
    return silent


LOCK = "worker.lock"

STOP_SECONDS = 3.0
"""Seconds after which a worker that does not stop is killed. Its last saved state is intact."""

KILL_SECONDS = 0.5
"""Seconds to wait for a killed process to exit."""

RESTARTED = "The worker stopped before its first report; the run was restarted."

STOPPED_EARLY = "The worker stopped before its first report."

STOPPED_TWICE = "The worker stopped before its first report, and so did its replacement."

ENDED = "ended without an error message: it was killed, ran out of memory, or the machine was restarted."

HALTED = "Its process was suspended by a signal and takes no steps until it is continued; Stop ends it."


def first_report_seconds() -> float:
    """Return how long a worker may show no sign of life before its first report: XFORMER_FIRST_REPORT_SECONDS, else 5."""
    try:
        seconds = float(os.environ.get("XFORMER_FIRST_REPORT_SECONDS", ""))
    except ValueError:
        return 5.0
    return seconds if seconds > 0 else 5.0


def with_process_state(store: RunStore, entry: RunRecord) -> RunRecord:
    """Return an entry with the current state of its process, which the run store records later, or never on a full disk."""
    file = store.folder_of(entry.id) / LOCK
    if not entry.is_active or entry.node is not None or not file.is_file():
        return entry
    if is_held(file):
        is_halted = (activity(holder(file) or 0) or " ")[0] in "tT"
        return entry.but(message=HALTED) if is_halted else entry
    with store.database.reading() as db:
        now = entry_of(db, entry.id)
        if now.worker != entry.worker:  # the worker has meanwhile recorded its end
            return now
        state, message = _how_it_ended(db, now, file)
    return now.but(state=state, message=message, worker=None, pid=None)


def mark_dead(store: RunStore, entry: RunRecord) -> None:
    """Record that a run's process has ended, and kill a process that does not stop or never begins.

    A run whose worker ended before its first report is queued again; if the second worker does so too, the run has failed.
    Runs on a Ray node are ignored, because they have no process here.
    """
    if entry.node is not None:
        return
    file = store.folder_of(entry.id) / LOCK
    lock, how = take(file), ""
    if lock is None and (how := _kill_unresponsive(store, entry, file)):
        lock = take_within(file, KILL_SECONDS)
    if lock is None:
        return
    last_looks.pop(entry.worker or "", None)
    try:
        with store.database.writing() as db:
            now = entry_of(db, entry.id)
            if now.worker == entry.worker and now.is_active:
                state, message = _how_it_ended(db, now, file, how or ENDED)
                move(db, now, state, worker=None, pid=None, message=message)
                db.execute("DELETE FROM commands WHERE run = ?", (now.id,))
    finally:
        os.close(lock)


def _how_it_ended(db: sqlite3.Connection, entry: RunRecord, file: Path, how: str = ENDED) -> tuple[str, str]:
    """Return the state and the message of a run whose process ended without recording it."""
    stop_sent = has_stop(db, entry.id)
    words = last_words(file)
    if stop_sent or words or not entry.unreported_starts:
        words = words or ("Its process ended before it responded." if stop_sent else f"Its process {how}")
        return "stopped" if stop_sent else "interrupted", f"{words} Resume continues from the last saved state."
    if entry.unreported_starts == 1:
        return "queued", STOPPED_EARLY
    return "failed", f"{STOPPED_TWICE} The second worker {how} See worker.log for details; Resume starts it again."


def _kill_unresponsive(store: RunStore, entry: RunRecord, file: Path) -> str:
    """Kill the process of a run if it does not stop or never begins. Returns the reason as a clause, "" if not killed."""
    query = "SELECT min(sent) AS sent FROM commands WHERE run = ? AND kind = 'stop'"
    with store.database.reading() as db:
        stop_sent = db.execute(query, (entry.id,)).fetchone()["sent"]
        now = entry_of(db, entry.id)
    pid = holder(file)
    if now.worker is None or now.worker != entry.worker or pid is None:
        return ""
    if stop_sent is not None and time.monotonic() - stop_sent >= STOP_SECONDS:
        how = "was killed because it did not respond."
    elif now.unreported_starts and silent_seconds(now.worker, pid) >= (seconds := first_report_seconds()):
        how = f"showed no sign of life for {seconds:g} s and was killed."
    else:
        return ""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return ""
    return how
