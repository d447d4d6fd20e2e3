"""The queue of runs: submit, fork, stop and resume them, change their learning rate, and start their workers.

Any process may call `reconcile` at any time: a server every second, a page, a worker that has finished. A start is one
transaction of the run store, and a lock file tells whether a run has a process (see `liveness`).

One run a device is trained at a time. The first waiting run of each owner comes before the second of any. Among equals the
owner whose last turn is longest ago comes first, then the earlier request. Turns are counted, not timed, as a clock can be set
back; turns of deleted runs count too, or deleting finished runs would be a way to the front. A run whose worker stopped before
its first report is started again before all others.

torch is imported only where a run is made or started, so `python -m xformer runs stop` answers at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
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
from xformer.training.entry import DAMAGED, ELSEWHERE, MOVES, RESUMABLE, Entry
from xformer.training.executors import Resources
from xformer.training.executors.process import ProcessExecutor
from xformer.training.executors.relay import start_relay, uses_ray
from xformer.training.limits import Limits
from xformer.training.liveness import LOCK, RESTARTED, mark_dead, with_process_state
from xformer.training.run_store import RunStore, all_entries, change_peak, entry_of, move, new_id, put_command, where
from xformer.training.sweeps import check_alike, spec
from xformer.training.sweeps import sweep as all_of

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint


START = "start.safetensors"
"""The weights that a forked run begins with."""


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
    also: Callable[[Sequence[Entry]], None] = lambda entries: None,
) -> str:
    """Put a run into the queue and return its id. Raises `ConfigError` or `RunStoreError` when it may not be trained here.

    With `sweep`, one model for each combination of these settings is trained, all together; see `train_many`. `also` gets all
    entries in the transaction that adds this one, and may raise.
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
        # Before so many presets are made. On Ray a sweep is trained in batches that fit.
        limits.check_size(settings, n_models=n, together=1 if on_ray else n)
    if sweep is not None:
        check_alike(all_of(settings, **sweep))

    def check(entries: Sequence[Entry]) -> None:
        if limits is not None:
            limits.check_queue(settings, owner, entries, store.folder, n_models=n)
        also(entries)

    with store.making(run):
        if start is not None:  # the weights exist before the run can start
            save(Checkpoint(start.model, start.task), store.folder_of(run) / START)
        whose: dict[str, Any] = {"owner": owner, "name": name, "parent": parent, "private": private}
        store.add(settings, device=device, run=run, sweep=column, check=check, **whose)
    with suppress(XformerError, OSError):  # it is queued, and the next `reconcile` starts it
        reconcile(store)
    return run


def fork(store: RunStore, run: str, step: int, settings: Preset, **how: Any) -> str:
    """Submit a run that starts from a snapshot of another run, with a fresh optimiser and data order. Returns its id.

    `how` goes to `submit`. Raises `ConfigError` when the settings have another model shape.
    """
    from xformer.checkpoints import load
    from xformer.tasks import Task

    snapshot = load(snapshot_file(store.folder_of(run), step))
    if snapshot.config != settings.model:
        raise ConfigError("A fork keeps the model's settings, got others; change only how it is trained.")
    Task(settings.task).check_fits(settings.model)
    return submit(store, settings, parent=f"{run}@{step}", start=snapshot, **how)


def stop(store: RunStore, run: str) -> None:
    """Stop a run, or take it out of the queue. It can be resumed. A run that is not active is left alone."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.is_active:
            put_command(db, run, "stop")
        elif entry.state in ("queued", "paused"):
            move(db, entry, "stopped")


def resume(store: RunStore, run: str) -> None:
    """Resume a run: a paused worker at once, any other run in its turn. Resuming an active run is no error."""
    before = store.entry(run)
    # A command would not reach a process that has ended.
    if before.is_active and not with_process_state(store, before).is_active:
        mark_dead(store, before)
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
            move(db, entry, "queued", message="", unreported_starts=0)
        elif entry.state != "queued":
            raise RunStoreError(f"The run “{entry.name}” is {entry.state}: there is nothing left to resume.")
    with suppress(XformerError, OSError):
        reconcile(store)


def change_rate(store: RunStore, run: str, peak: float) -> None:
    """Change the peak of the learning rate: before the next step, or for the next resume."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.sweep is not None:
            what = f"Each model of the sweep “{entry.name}” has a learning rate of its own"
            raise RunStoreError(f"{what}; stop it to change one.")
        if entry.is_active:
            put_command(db, run, "rate", peak)
        elif "queued" not in (entry.state, *MOVES[entry.state]):
            raise RunStoreError(f"The run “{entry.name}” is {entry.state}: it takes no more steps.")
        else:
            change_peak(db, run, entry.step, peak)


def with_text(preset: Preset, name: str) -> Preset:
    """Return a preset of characters with the same model and recipe for another text (see `xformer.tasks.texts`).

    The alphabet follows from the text, and the sizes of the model's vocabulary from the alphabet.

    Raises:
        ConfigError: The preset is one of another task.
        InputError: There is no text of that name.
    """
    from xformer.tasks import Task, texts

    if not TASK_LIMITS[preset.task.name].is_text:
        what = f"Only the task characters reads a text, got the preset {preset.name!r}"
        raise ConfigError(f"{what}; for example 'characters'.")
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

    What a Ray cluster computes is looked after by a process of its own; see `executors.relay`.
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
        _start_next(store, device, available)


def _start_next(store: RunStore, device: str, available: Sequence[str]) -> None:
    """Start the next run of a device, if the device is free."""
    if not next_for(device, store.entries(), available):
        return
    with store.database.writing() as db:
        entries = all_entries(db)
        for entry in next_for(device, entries, available):
            try:
                lock = liveness.take(store.folder_of(entry.id) / LOCK)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:  # damaged by hand
                move(db, entry, "stopped", message=f"Its folder cannot be used: {error.strerror}.")
                continue
            if lock is None:  # its last process is just leaving
                continue
            try:
                token = secrets.token_hex(8)
                turn = 1 + max(other.turn for other in entries)
                values: dict[str, Any] = {"message": RESTARTED} if entry.unreported_starts else {}
                values |= {"unreported_starts": entry.unreported_starts + 1, "pid": None}
                move(db, entry, "running", device=device, node=None, turn=turn, worker=token, **values)
                db.execute("DELETE FROM commands WHERE run = ?", (entry.id,))
                ProcessExecutor(store, lock).submit(entry_of(db, entry.id), Resources())
            finally:
                os.close(lock)
            return


def empty_bin(store: RunStore, older_than: float = UNDELETE_SECONDS) -> None:
    """Remove runs for good that were deleted some time ago."""
    for entry in store.entries(deleted=True):
        with store.database.writing() as db:
            condition, of = where(entry.id)
            query = f"SELECT 1 FROM runs WHERE {condition} AND deleted < ?"
            if db.execute(query, (of, time.time() - older_than)).fetchone() is None:  # too early, or restored meanwhile
                continue
            shutil.rmtree(store.folder_of(entry.id), ignore_errors=True)
            db.execute(f"DELETE FROM runs WHERE {condition}", (of,))
            for table in ("metrics", "commands"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (entry.id,))
            for member in (entry.sweep or {}).get("ids", ()):  # members that are runs keep their rows
                query = "DELETE FROM metrics WHERE run = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?1)"
                db.execute(query, (member,))


def devices() -> list[str]:
    """Return the devices of this machine that each train one run at a time: every GPU, and the processor."""
    import torch  # only here: a command to a run does not need it

    return [*(f"cuda:{index}" for index in range(torch.cuda.device_count())), CPU]


def suits(entry: Entry, device: str, available: Sequence[str]) -> bool:
    """Return whether a run may be trained on a device: the device in `wanted`; a GPU, if there is one, for "auto" and "cuda".

    A run that wants a GPU which does not exist is trained on the processor, with a message.
    """
    gpus = [name for name in available if name != CPU]
    if entry.wanted in ("auto", "cuda"):
        return device in (gpus or [CPU])
    return device == entry.wanted if entry.wanted in available else device == CPU


def in_turn(entries: Sequence[Entry]) -> list[Entry]:
    """Return the waiting runs among all entries, in the order in which they will be trained."""
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


def next_for(device: str, entries: Sequence[Entry], available: Sequence[str]) -> list[Entry]:
    """Return the waiting runs for a device, the next one first; none while the device is taken."""
    if any(entry.is_active and entry.device == device and entry.node is None for entry in entries):
        return []
    return [entry for entry in in_turn(entries) if suits(entry, device, available)]


def place(run: str, entries: Sequence[Entry], available: Sequence[str]) -> int:
    """Return how many waiting runs come before this one on its device; 0 is the next."""
    waiting = in_turn(entries)
    at = next((index for index, entry in enumerate(waiting) if entry.id == run), 0)
    mine = [device for device in available if waiting and suits(waiting[at], device, available)]
    return sum(any(suits(entry, device, available) for device in mine) for entry in waiting[:at])
