"""The queue of runs: which run is next on a device, and starting its worker.

Any process may call `reconcile` at any time: a server every second, a page, a worker that has finished. A start is one
transaction of the run store, and a lock file tells whether a run has a process (see `liveness`).

One run a device is trained at a time. The first waiting run of each owner comes before the second of any. Among equals the
owner whose last turn is longest ago comes first, then the earlier request. Turns are counted, not timed, as a clock can be set
back; turns of deleted runs count too, or deleting finished runs would be a way to the front. A run whose worker stopped before
its first report is started again before all others.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from xformer.errors import RunStoreError
from xformer.training import liveness
from xformer.training.entry import Entry
from xformer.training.liveness import LOCK, RESTARTED, mark_dead
from xformer.training.run_store import RunStore, all_entries, move, where

LOG = "worker.log"
UNDELETE_SECONDS = 3600.0
"""Seconds during which a deleted run can be restored."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Environment of a worker: glibc keeps freed memory for the next step. Without it the kernel gives a sweep thousands of zeroed
pages a step, which takes a quarter of its time."""


def reconcile(store: RunStore) -> None:
    """Record workers that died, kill workers that do not stop or never begin, and start the next run of each device."""
    entries = store.entries()
    for entry in entries:
        if entry.is_active:
            with suppress(RunStoreError, OSError):  # an error of one run must not hold up the others
                mark_dead(store, entry)
    if not any(entry.state == "queued" for entry in store.entries()):
        return
    available = devices()
    for device in available:
        _start_next(store, device, available)


def _start_next(store: RunStore, device: str, available: Sequence[str]) -> None:
    """Start the next run of a device, if the device is free."""
    if not next_for(device, store.entries(), available):
        return
    with store.database.writing() as db:
        entries = all_entries(db)
        for entry in next_for(device, entries, available):
            if why := _unusable(store.folder_of(entry.id)):
                move(db, entry, "stopped", message=f"Its folder cannot be used: {why}.")
                continue
            lock = liveness.take(store.folder_of(entry.id) / LOCK)
            if lock is None:  # its last process is just leaving
                continue
            try:
                token = secrets.token_hex(8)
                turn = 1 + max(other.turn for other in entries)
                message = {"message": RESTARTED} if entry.unreported_starts else {}
                starts = entry.unreported_starts + 1
                move(
                    db,
                    entry,
                    "running",
                    device=device,
                    turn=turn,
                    worker=token,
                    pid=None,
                    unreported_starts=starts,
                    **message,
                )
                db.execute("DELETE FROM commands WHERE run = ?", (entry.id,))
                _spawn(store.folder_of(entry.id), store, entry.id, token, lock)
            finally:
                os.close(lock)
            return


def _unusable(folder: Path) -> str:
    """Return why a run cannot be trained in a damaged folder; empty where it can."""
    if folder.exists() and not folder.is_dir():
        return "a file is in its place"
    taken = [name for name in (LOCK, LOG) if (folder / name).exists() and not (folder / name).is_file()]
    return f"{taken[0]} is no file" if taken else ""


def _spawn(folder: Path, store: RunStore, run: str, token: str, lock: int) -> None:
    """Start the worker of a run as a detached process, which outlives this one and inherits the lock."""
    arguments = [run, "--folder", str(store.folder.resolve()), "--token", token, "--lock", str(lock)]
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "xformer.training.worker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            env=KEEP_MEMORY | os.environ,
            start_new_session=True,
            pass_fds=(lock,),
        )
    threading.Thread(target=process.wait, daemon=True).start()  # or it would stay as a zombie of this process
    liveness.sign(lock, process.pid)


def empty_bin(store: RunStore, older_than: float = UNDELETE_SECONDS) -> None:
    """Remove runs for good that were deleted some time ago."""
    for entry in store.entries(deleted=True):
        with store.database.writing() as db:
            condition, of = where(entry.id)
            expired = db.execute(
                f"SELECT 1 FROM runs WHERE {condition} AND deleted < ?", (of, time.time() - older_than)
            )
            if expired.fetchone() is None:  # too early, or restored meanwhile
                continue
            shutil.rmtree(store.folder_of(entry.id), ignore_errors=True)
            db.execute(f"DELETE FROM runs WHERE {condition}", (of,))
            for table in ("metrics", "commands"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (entry.id,))
            for member in (entry.sweep or {}).get("ids", ()):  # members that are runs keep their rows
                db.execute(
                    "DELETE FROM metrics WHERE run = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?)",
                    (member, member),
                )


CPU = "cpu"


def devices() -> list[str]:
    """Return the devices of this machine that each train one run at a time: every GPU, and the processor."""
    import torch  # only here: a command to a run does not need it

    return [*(f"cuda:{index}" for index in range(torch.cuda.device_count())), CPU]


def suits(entry: Entry, device: str, available: Sequence[str]) -> bool:
    """Return whether a run may be trained on a device: the device in `wanted`; a GPU, if there is one, for "auto" and "cuda".

    A run that wants a GPU which does not exist is trained on the processor, with a message.
    """
    gpus = [name for name in available if name != CPU]
    if entry.wanted == "auto":
        return device in (gpus or [CPU])
    if entry.wanted == "cuda":
        return device in (gpus or [CPU])
    return device == entry.wanted if entry.wanted in available else device == CPU


def in_turn(entries: Sequence[Entry]) -> list[Entry]:
    """Return the waiting runs among all entries, in the order in which they will be trained."""
    last_turn: dict[str, int] = {}
    being_trained = Counter(entry.owner for entry in entries if entry.is_active)
    for entry in entries:
        last_turn[entry.owner] = max(last_turn.get(entry.owner, 0), entry.turn)
    in_queue = (entry for entry in entries if entry.state == "queued" and entry.deleted is None)
    waiting = sorted(in_queue, key=lambda entry: entry.number)
    nth: Counter[str] = Counter()
    ranked = []
    for entry in waiting:
        rank = being_trained[entry.owner] + nth[entry.owner]
        nth[entry.owner] += 1
        ranked.append(((entry.unreported_starts == 0, rank, last_turn[entry.owner], entry.number), entry))
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]


def next_for(device: str, entries: Sequence[Entry], available: Sequence[str]) -> list[Entry]:
    """Return the waiting runs for a device, the next one first; none while the device is taken."""
    if any(entry.is_active and entry.device == device for entry in entries):
        return []
    return [entry for entry in in_turn(entries) if suits(entry, device, available)]


def place(run: str, entries: Sequence[Entry], available: Sequence[str]) -> int:
    """Return how many waiting runs come before this one on its device; 0 is the next."""
    waiting = in_turn(entries)
    mine = next((entry for entry in waiting if entry.id == run), None)
    if mine is None:
        return 0
    ahead = waiting[: waiting.index(mine)]
    return sum(any(suits(entry, device, available) and suits(mine, device, available) for device in available)
               for entry in ahead)  # fmt: skip
