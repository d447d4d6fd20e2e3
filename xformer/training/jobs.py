"""The queue of runs: submit, fork, stop and resume runs, change their learning rate, and start their workers.

Any process may call `reconcile` at any time: a server every second, a page, or a worker that has finished. A run is started in
one transaction of the run store, and a lock file shows whether a run has a process (see `liveness`).

Each device trains one run at a time. The first waiting run of every owner comes before the second run of any owner. Ties go to
the owner whose last turn was longest ago, then to the earlier request. Turns are counted rather than timed, because a clock can
be set back. Turns of deleted runs count too, so that deleting finished runs does not move an owner to the front. A run whose
worker stopped before its first report is restarted before all others.

torch is imported only where a run is created or started, so `python -m xformer runs stop` returns immediately.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.files import snapshot_file
from xformer.presets import Preset
from xformer.task_limits import TASK_LIMITS
from xformer.training import executors, liveness
from xformer.training.executors import Resources
from xformer.training.executors.process import ProcessExecutor
from xformer.training.executors.relay import start_relay, uses_ray
from xformer.training.limits import Limits
from xformer.training.liveness import LOCK, RESTARTED, mark_dead, with_process_state
from xformer.training.run_record import DAMAGED, ELSEWHERE, MOVES, RESUMABLE, RunRecord
from xformer.training.run_store import RunStore, all_entries, change_peak, entry_of, move, new_id, put_command, where
from xformer.training.sweeps import check_alike, spec
from xformer.training.sweeps import sweep as all_of

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint


START = "start.safetensors"
"""File with the initial weights of a forked run."""


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
    sweep: Mapping[str, Sequence[Any]] | None = None,
    also: Callable[[Sequence[RunRecord]], None] = lambda entries: None,
) -> str:
    """Add a run to the queue and return its id. Raises `ConfigError` or `RunStoreError` if it is not allowed here.

    With `sweep`, one model is trained for each combination of these settings, all at once; see `train_many`. `also` receives
    all entries within the transaction that adds the run, and may raise to reject it.
    """
    from xformer.checkpoints import Checkpoint, save
    from xformer.tasks import Task

    Task(settings.task).check_fits(settings.model)
    on_ray = executors.chosen() == executors.RAY
    known = ["auto", "cuda", *devices()]
    if device not in known:
        raise RunStoreError(f"The device must be one of {', '.join(known)}, got {device!r:.40}.")
    run = new_id()
    column = None if sweep is None else spec(sweep)
    n = 1 if column is None else len(column["ids"])
    if limits is not None:
        # Check before creating the presets. Ray trains a sweep in batches that fit.
        limits.check_size(settings, n_models=n, together=1 if on_ray else n)
    if sweep is not None:
        check_alike(all_of(settings, **sweep))

    def check(entries: Sequence[RunRecord]) -> None:
        if limits is not None:
            limits.check_queue(settings, owner, entries, store.folder, n_models=n)
        also(entries)

    with store.removed_on_failure(run):
        if start is not None:  # write the weights before the run can start
            save(Checkpoint(start.model, start.task), store.folder_of(run) / START)
        owned: dict[str, Any] = {"owner": owner, "name": name, "parent": parent, "private": private}
        store.add(settings, device=device, run=run, sweep=column, check=check, **owned)
    with suppress(XformerError, OSError):  # the run is queued; the next `reconcile` starts it
        reconcile(store)
    return run


def fork(store: RunStore, run: str, step: int, settings: Preset, **how: Any) -> str:
    """Submit a run that starts from a snapshot of another run, with a new optimiser and data order. Returns its id.

    `how` is passed to `submit`. Raises `ConfigError` if the settings change the model.
    """
    from xformer.checkpoints import load
    from xformer.tasks import Task

    snapshot = load(snapshot_file(store.folder_of(run), step))
    if snapshot.config != settings.model:
        raise ConfigError("A fork keeps the model's settings, got different ones; change only the training settings.")
    Task(settings.task).check_fits(settings.model)
    return submit(store, settings, parent=f"{run}@{step}", start=snapshot, **how)


def stop(store: RunStore, run: str) -> None:
    """Stop an active run, or remove a waiting or paused one from the queue. It can be resumed; other runs are unaffected."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.is_active:
            put_command(db, run, "stop")
        elif entry.state in ("queued", "paused"):
            move(db, entry, "stopped")


def resume(store: RunStore, run: str) -> None:
    """Resume a run: a paused worker immediately, any other run through the queue. Resuming an active run is not an error."""
    before = store.entry(run)
    # A process that has ended would not receive the command.
    if before.is_active and not with_process_state(store, before).is_active:
        mark_dead(store, before)
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.deleted is not None:
            raise RunStoreError(f"The run “{entry.name}” was deleted; restore it before you resume it.")
        if entry.is_active:
            put_command(db, run, "resume")
        elif entry.state == DAMAGED:
            raise RunStoreError(f"The run “{entry.name}” cannot be resumed. {entry.message}")
        elif entry.wanted == ELSEWHERE:
            raise RunStoreError(f"The run “{entry.name}” was trained by another program; resume it there.")
        elif entry.state in RESUMABLE:
            move(db, entry, "queued", message="", unreported_starts=0)
        elif entry.state != "queued":
            raise RunStoreError(f"The run “{entry.name}” is {entry.state}: there is nothing left to resume.")
    with suppress(XformerError, OSError):
        reconcile(store)


def change_rate(store: RunStore, run: str, peak: float) -> None:
    """Change the peak learning rate, from the next step on or, for a run that has stopped, from its next resume on."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.sweep is not None:
            what = f"Each model of the sweep “{entry.name}” has its own learning rate"
            raise RunStoreError(f"{what}; stop it to change one.")
        if entry.is_active:
            put_command(db, run, "rate", peak)
        elif "queued" not in (entry.state, *MOVES[entry.state]):
            raise RunStoreError(f"The run “{entry.name}” is {entry.state} and takes no more steps.")
        else:
            change_peak(db, run, entry.step, peak)


def check_reads_text(preset: Preset) -> None:
    """Raise `ConfigError` if the task of a preset is not to continue a text."""
    if not TASK_LIMITS[preset.task.name].is_text:
        what = f"Only presets of the task characters read a text, got {preset.name!r}"
        raise ConfigError(f"{what}; for example 'characters'.")


def with_text(preset: Preset, name: str) -> Preset:
    """Return a preset of the task `characters` with the same model and recipe but another text (see `xformer.tasks.texts`).

    The text determines the alphabet, and the alphabet determines the model's vocabulary size and special tokens.

    Raises:
        ConfigError: The preset has another task.
        InputError: There is no text of that name.
    """
    from xformer.tasks import Task, texts

    check_reads_text(preset)
    if name == preset.task.text:
        return preset
    alphabet = texts.alphabet_of(texts.read(name))
    task = Task(preset.task.replace(text=name, alphabet=alphabet, symbols=len(alphabet)))
    special = {f"{name}_token": token for name, token in vars(task.vocabulary.special).items()}
    model = preset.model.replace(vocab_size=len(task.vocabulary), **special)
    title = f"{preset.title.split(' of ')[0]} of {texts.title(name)}"
    return replace(preset, title=title, model=model, task=task.config)


CPU = "cpu"
UNDELETE_SECONDS = 3600.0
"""Seconds during which a deleted run can be restored."""


def reconcile(store: RunStore) -> None:
    """Record workers that died, kill workers that do not stop or never begin, and start the next run of each device.

    A separate process manages the runs on a Ray cluster; see `executors.relay`.
    """
    entries, processes = store.entries(), ProcessExecutor(store)
    for entry in entries:
        if entry.is_active:
            with suppress(RunStoreError, OSError):  # an error of one run must not hold up the others
                processes.poll(entry)
    if uses_ray(entries):
        start_relay(store)
    if executors.chosen() != executors.PROCESS or not any(entry.state == "queued" for entry in store.entries()):
        return
    available = devices()
    for device in available:
        start_next(store, device, available)


def start_next(store: RunStore, device: str, available: Sequence[str]) -> None:
    """Start the next run of a device if the device is free."""
    if not next_for(device, store.entries(), available):
        return
    with store.database.writing() as db:
        for entry in next_for(device, all_entries(db), available):
            try:
                lock = liveness.take(store.folder_of(entry.id) / LOCK)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:  # damaged by hand
                move(db, entry, "stopped", message=f"Its folder cannot be used: {error.strerror}.")
                continue
            if lock is None:  # its previous process is still exiting
                continue
            try:
                message = {"message": RESTARTED} if entry.unreported_starts else {}
                assign(db, entry, device=device, node=None, **message)
                ProcessExecutor(store, lock).submit(entry_of(db, entry.id), Resources())
            finally:
                os.close(lock)
            return


def assign(db: sqlite3.Connection, entry: RunRecord, **values: Any) -> None:
    """Mark a waiting run as running, with the next turn and a new token, and delete its old commands."""
    turn = 1 + max(other.turn for other in all_entries(db))
    values |= {"worker": secrets.token_hex(8), "pid": None, "unreported_starts": entry.unreported_starts + 1}
    move(db, entry, "running", turn=turn, **values)
    db.execute("DELETE FROM commands WHERE run = ?", (entry.id,))


def empty_bin(store: RunStore, older_than: float = UNDELETE_SECONDS) -> None:
    """Permanently remove runs that were deleted more than `older_than` seconds ago."""
    for entry in store.entries(deleted=True):
        with store.database.writing() as db:
            condition, key = where(entry.id)
            query = f"SELECT 1 FROM runs WHERE {condition} AND deleted < ?"
            found = db.execute(query, (key, time.time() - older_than)).fetchone()
            if found is None:  # too recent, or restored meanwhile
                continue
            shutil.rmtree(store.folder_of(entry.id), ignore_errors=True)
            db.execute(f"DELETE FROM runs WHERE {condition}", (key,))
            for table in ("metrics", "commands"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (entry.id,))
            for member in (entry.sweep or {}).get("ids", ()):  # members that have become runs keep their metrics
                query = "DELETE FROM metrics WHERE run = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?1)"
                db.execute(query, (member,))


def devices() -> list[str]:
    """Return the devices of this machine, each of which trains one run at a time: every GPU, and the CPU."""
    import torch  # imported here because sending a command to a run does not need it

    return [*(f"cuda:{index}" for index in range(torch.cuda.device_count())), CPU]


def can_run_on(entry: RunRecord, device: str, available: Sequence[str]) -> bool:
    """Return whether a run may be trained on a device: the one in `wanted`, or for "auto" and "cuda" any GPU if there is one.

    A run that requests a GPU that does not exist is trained on the CPU, with a message.
    """
    gpus = [name for name in available if name != CPU]
    if entry.wanted in ("auto", "cuda"):
        return device in (gpus or [CPU])
    return device == entry.wanted if entry.wanted in available else device == CPU


def queue_order(entries: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the waiting runs among all entries in the order in which they will be trained."""
    last_turn: dict[str, int] = {}
    for entry in entries:
        last_turn[entry.owner] = max(last_turn.get(entry.owner, 0), entry.turn)
    ahead = Counter(entry.owner for entry in entries if entry.is_active)
    ranks = {}
    waiting = [entry for entry in entries if entry.state == "queued" and entry.deleted is None]
    for entry in sorted(waiting, key=lambda entry: entry.number):
        ranks[entry.id] = (entry.unreported_starts == 0, ahead[entry.owner], last_turn[entry.owner], entry.number)
        ahead[entry.owner] += 1
    return sorted(waiting, key=lambda entry: ranks[entry.id])


def next_for(device: str, entries: Sequence[RunRecord], available: Sequence[str]) -> list[RunRecord]:
    """Return the waiting runs for a device, the next one first; empty while the device is in use."""
    if any(entry.is_active and entry.device == device and entry.node is None for entry in entries):
        return []
    return [entry for entry in queue_order(entries) if can_run_on(entry, device, available)]


def queue_position(run: str, entries: Sequence[RunRecord], available: Sequence[str]) -> int:
    """Return the number of waiting runs ahead of this one on its devices; 0 if it is next."""
    waiting = queue_order(entries)
    index = next((index for index, entry in enumerate(waiting) if entry.id == run), 0)
    mine = [device for device in available if waiting and can_run_on(waiting[index], device, available)]
    return sum(any(can_run_on(entry, device, available) for device in mine) for entry in waiting[:index])
