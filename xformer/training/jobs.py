"""Submit, fork, stop and resume runs, and change their learning rate.

torch is imported only where a run is made or started, so `python -m xformer runs stop` answers at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.paths import snapshot_file
from xformer.presets import Preset
from xformer.task_limits import TASK_LIMITS
from xformer.training import dispatch
from xformer.training.entry import DAMAGED, ELSEWHERE, MOVES, RESUMABLE, Entry
from xformer.training.limits import Limits
from xformer.training.liveness import mark_dead, with_process_state
from xformer.training.run_store import RunStore, change_peak, entry_of, move, new_id, put_command
from xformer.training.sweeps import spec

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
    from xformer.training.many import check_alike
    from xformer.training.many import sweep as all_of

    Task(settings.task).check_fits(settings.model)
    known = ["auto", "cuda", *dispatch.devices()]
    if device not in known:
        raise RunStoreError(f"The device must be one of {', '.join(known)}, got {device!r:.40}.")
    run = new_id()
    how: dict[str, Any] = {"owner": owner, "name": name, "device": device, "parent": parent, "run": run}
    n = 1
    if sweep is not None:
        how["sweep"] = spec(sweep)
        n = len(how["sweep"]["ids"])
        if limits is not None:
            limits.check_size(settings, n_models=n)  # before so many presets are made
        check_alike(all_of(settings, **sweep))

    def check(entries: Sequence[Entry]) -> None:
        if limits is not None:
            limits.check_again(settings, owner, entries, store.folder, n_models=n)
        also(entries)

    try:
        if limits is not None:
            limits.check(settings, owner, store.entries(), store.folder, n_models=n)
        if start is not None:  # the weights exist before the run can start
            save(Checkpoint(start.model, start.task), store.folder_of(run) / START)
        store.add(settings, **how, private=private, check=check)
    except BaseException as error:
        shutil.rmtree(store.folder_of(run), ignore_errors=True)
        if isinstance(error, OSError):
            raise RunStoreError(f"The run could not be written down: {error.strerror or error}.") from error
        raise
    with suppress(XformerError, OSError):  # it is queued, and the next `reconcile` starts it
        dispatch.reconcile(store)
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
        dispatch.reconcile(store)


def change_rate(store: RunStore, run: str, peak: float) -> None:
    """Change the peak of the learning rate: before the next step, or for the next resume."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.sweep is not None:
            raise RunStoreError(
                f"Each model of the sweep “{entry.name}” has a learning rate of its own; stop it to change one."
            )
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
        raise ConfigError(
            f"Only the task characters reads a text, got the preset {preset.name!r}; for example 'characters'."
        )
    if name == preset.task.text:
        return preset
    alphabet = texts.alphabet_of(texts.read(name))
    task = Task(preset.task.replace(text=name, alphabet=alphabet, symbols=len(alphabet)))
    special = task.vocabulary.special
    model = preset.model.replace(
        vocab_size=len(task.vocabulary),
        pad_token=special.pad,
        end_token=special.end,
        start_token=special.start,
    )
    title = f"{preset.title.split(' of ')[0]} of {texts.title(name)}"
    return replace(preset, title=title, model=model, task=task.config)
