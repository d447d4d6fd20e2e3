"""From the run store to processes: start the next run, notice the dead, and what a person may ask of a run.

Anybody may call `reconcile` at any time, from any process: a server every second, a page, a worker that has finished. What has
to be done at once is done in one transaction of the store, and a lock file says whether a run has a process (see `liveness`).

Nothing here needs torch until a run is made or started: `python -m xformer runs stop` answers at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.places import snapshot_file
from xformer.presets import Preset
from xformer.training import liveness, queue
from xformer.training.entry import DAMAGED, ELSEWHERE, MOVES, RESUMABLE, Entry
from xformer.training.limits import Limits
from xformer.training.run_statements import all_entries, change_peak, entry_of, move, put_command, where
from xformer.training.run_store import RunStore, new_id

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint

LOCK = "worker.lock"
LOG = "worker.log"
START = "start.safetensors"
"""The weights that a forked run begins with."""
STOP_SECONDS = 3.0
"""Seconds that a worker has to obey a stop before it is killed; what it kept last is whole."""
KILL_SECONDS = 0.5
"""Seconds that a killed process may take to be gone."""
HALTED = "Its process is halted by a signal and takes no step until it is continued; Stop ends it."
UNDELETE_SECONDS = 3600.0
"""How long a deleted run can be taken back."""


def submit(
    store: RunStore,
    settings: Preset,
    *,
    owner: str = "",
    name: str = "",
    device: str = "auto",
    parent: str | None = None,
    start: Checkpoint | None = None,
    limits: Limits | None = None,
    private: bool = False,
    also: Callable[[Sequence[Entry]], None] = lambda entries: None,
) -> str:
    """Put a run into the queue and return its id. Raises `ConfigError` or `RunStoreError` when it may not be trained here.

    `also` sees all entries in the very transaction that adds this one, and may raise too.
    """
    from xformer.checkpoints import Checkpoint, save
    from xformer.tasks import Task

    Task(settings.task).check_fits(settings.model)
    known = ["auto", "cuda", *queue.devices()]
    if device not in known:
        raise RunStoreError(f"The device must be one of {', '.join(known)}, got {device!r:.40}.")
    run = new_id()
    how: dict[str, Any] = {"owner": owner, "name": name, "device": device, "parent": parent, "run": run}

    def check(entries: Sequence[Entry]) -> None:
        if limits is not None:
            limits.check_again(settings, owner, entries, store.folder)
        also(entries)

    try:
        if limits is not None:
            limits.check(settings, owner, store.entries(), store.folder)
        if start is not None:  # its first weights are there before it can get its turn
            save(Checkpoint(start.model, start.task), store.folder_of(run) / START)
        store.add(settings, **how, private=private, check=check)
    except BaseException as error:
        shutil.rmtree(store.folder_of(run), ignore_errors=True)
        if isinstance(error, OSError):
            raise RunStoreError(f"The run could not be written down: {error.strerror or error}.") from error
        raise
    with suppress(XformerError, OSError):  # it waits now, and whoever tends next will start it
        reconcile(store)
    return run


def fork(store: RunStore, run: str, step: int, settings: Preset, **how: Any) -> str:
    """A new run that begins with the weights of a snapshot of another one; its optimiser and its data begin anew.

    `how` goes to `submit`. Raises `ConfigError` where the settings ask for another shape of model.
    """
    from xformer.checkpoints import load
    from xformer.tasks import Task

    snapshot = load(snapshot_file(store.folder_of(run), step))
    if snapshot.config != settings.model:
        raise ConfigError("A fork keeps the model's settings, got others; change only how it is trained.")
    Task(settings.task).check_fits(settings.model)
    return submit(store, settings, parent=f"{run}@{step}", start=snapshot, **how)


def stop(store: RunStore, run: str) -> None:
    """Stop a run, or take it out of the queue. It can be resumed. Nothing happens to one that stands still already."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.is_active:
            put_command(db, run, "stop")
        elif entry.state in ("queued", "paused"):
            move(db, entry, "stopped")


def resume(store: RunStore, run: str) -> None:
    """Let a run go on: a paused worker at once, any other when its turn comes.

    Of two who press at the same time, the second finds it going on already, which is no error.
    """
    before = store.entry(run)
    if before.is_active and not with_process_state(store, before).is_active:  # it would be told, and nobody would hear
        _mark_dead(store, before)
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.deleted is not None:
            raise RunStoreError(f"The run “{entry.name}” was deleted; take it back before you resume it.")
        if entry.is_active:
            put_command(db, run, "resume")
        elif entry.state == DAMAGED:
            raise RunStoreError(f"The run “{entry.name}” cannot go on. {entry.message}")
        elif entry.wanted == ELSEWHERE:
            raise RunStoreError(f"The run “{entry.name}” was trained by another program; go on with it there.")
        elif entry.state in RESUMABLE:
            move(db, entry, "queued", message="")
        elif entry.state != "queued":
            raise RunStoreError(f"The run “{entry.name}” is {entry.state}: there is nothing left to resume.")
    with suppress(XformerError, OSError):
        reconcile(store)


def change_rate(store: RunStore, run: str, peak: float) -> None:
    """Give a run another peak of its learning rate: by its worker before the next step, or for when it goes on."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.is_active:
            put_command(db, run, "rate", peak)
        elif "queued" not in (entry.state, *MOVES[entry.state]):
            raise RunStoreError(f"The run “{entry.name}” is {entry.state}: it takes no more steps.")
        else:
            change_peak(db, run, entry.step, peak)


def reconcile(store: RunStore) -> None:
    """Notice workers that died, kill those that do not obey, start what is next, and empty the bin."""
    entries = store.entries()
    for entry in entries:
        if entry.is_active:
            with suppress(RunStoreError, OSError):  # what is wrong with one run keeps no other one waiting
                _mark_dead(store, entry)
    if not any(entry.state == "queued" for entry in store.entries()):
        return
    available = queue.devices()
    for device in available:
        _start_next(store, device, available)


def _mark_dead(store: RunStore, entry: Entry) -> None:
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


def _start_next(store: RunStore, device: str, available: Sequence[str]) -> None:
    """Give a free device to the next run."""
    if not queue.next_for(device, store.entries(), available):
        return
    with store.database.writing() as db:
        entries = all_entries(db)
        for entry in queue.next_for(device, entries, available):
            if why := _unusable(store.folder_of(entry.id)):
                move(db, entry, "stopped", message=f"Its folder cannot be used: {why}.")
                continue
            lock = liveness.take(store.folder_of(entry.id) / LOCK)
            if lock is None:  # its last process is just leaving
                continue
            try:
                token = secrets.token_hex(8)
                turn = 1 + max(other.turn for other in entries)
                move(db, entry, "running", device=device, turn=turn, worker=token, pid=None)
                db.execute("DELETE FROM commands WHERE run = ?", (entry.id,))
                _spawn(store.folder_of(entry.id), store, entry.id, token, lock)
            finally:
                os.close(lock)
            return


def _unusable(folder: Path) -> str:
    """Why a run cannot be trained in a folder that something has happened to; empty where it can."""
    if folder.exists() and not folder.is_dir():
        return "a file is in its place"
    taken = [name for name in (LOCK, LOG) if (folder / name).exists() and not (folder / name).is_file()]
    return f"{taken[0]} is no file" if taken else ""


def _spawn(folder: Path, store: RunStore, run: str, token: str, lock: int) -> None:
    """Start the worker of a run, detached: it outlives whoever started it, and inherits the lock."""
    command = [sys.executable, "-m", "xformer.training.worker", run, "--folder", str(store.folder.resolve())]
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [*command, "--token", token, "--lock", str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            pass_fds=(lock,),
        )
    threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie of this process
    liveness.sign(lock, process.pid)


def empty_bin(store: RunStore, older_than: float = UNDELETE_SECONDS) -> None:
    """Remove for good what was thrown away some time ago."""
    for entry in store.entries(deleted=True):
        with store.database.writing() as db:
            condition, of = where(entry.id)
            expired = db.execute(
                f"SELECT 1 FROM runs WHERE {condition} AND deleted < ?", (of, time.time() - older_than)
            )
            if expired.fetchone() is None:  # too early, or somebody has taken it back meanwhile
                continue
            shutil.rmtree(store.folder_of(entry.id), ignore_errors=True)
            db.execute(f"DELETE FROM runs WHERE {condition}", (of,))
            for table in ("metrics", "commands"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (entry.id,))
