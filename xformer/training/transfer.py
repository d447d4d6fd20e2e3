"""Export a run as one safetensors file, and import such a file into the run store.

content = to_file(store, run)                        # weights, settings, curve and figures
imported = from_file(store, content, owner="me")     # a finished run with the tag “imported”
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xformer.checkpoints import FILE, Checkpoint, from_bytes, load, save, to_bytes
from xformer.counting import n_parameters
from xformer.disk_quota import Room
from xformer.errors import CheckpointError, RunStoreError
from xformer.training.card import ImportedCard, card_of, fitting, one_line, read_card
from xformer.training.entry import Entry
from xformer.training.limits import Limits, promised
from xformer.training.run_store import RunStore, insert_rows, insert_run
from xformer.training.snapshots import snapshot_file, snapshot_steps, write_snapshot

TAG = "imported"


@dataclass(frozen=True)
class ImportResult:
    """The step of a run that a file was imported as. `is_new` is False when the store had the weights before."""

    run: str
    name: str
    step: int
    is_new: bool


def to_file(store: RunStore, run: str, step: int | None = None) -> bytes:
    """Return a run at a step, by default the last, as a file that `from_file` and `xformer.load` read.

    Raises `RunStoreError` or `CheckpointError` when there are no weights of that step.
    """
    entry, folder = store.entry(run), store.folder_of(run)
    steps = snapshot_steps(folder)
    if step is None:
        step = steps[-1] if steps else entry.step
    file = snapshot_file(folder, step)
    if not file.exists():
        file = folder / FILE
        if step != entry.step or not file.exists():
            raise RunStoreError(f"The run “{entry.name}” has no weights of step {step:,} yet.")
    checkpoint = load(file)
    card = card_of(entry, store.rows(run), step)
    return to_bytes(Checkpoint(checkpoint.model, checkpoint.task, card))


def from_file(
    store: RunStore,
    content: bytes,
    *,
    owner: str,
    file_name: str = "",
    limits: Limits | None = None,
    private: bool = False,
    sees: Callable[[Entry], bool] = lambda entry: True,
) -> ImportResult:
    """Import an untrusted file as a finished run with the weights of one step.

    Weights that are in the store already, in a run that the owner `sees`, are not imported again. Raises `CheckpointError` or
    `RunStoreError` when the file is refused; then nothing is kept.
    """
    checkpoint = from_bytes(content)
    if checkpoint.task is None:
        raise CheckpointError("The file names no task, so no screen would know what to let its model read.")
    n, card = n_parameters(checkpoint.config), read_card(checkpoint.card)
    limits = limits or Limits()
    if n > limits.parameters:
        raise RunStoreError(
            f"The model in the file has {n:,} parameters, and this server allows {limits.parameters:,}."
        )
    clean = Checkpoint(checkpoint.model, checkpoint.task)
    weights = to_bytes(clean)
    if (there := _same(filter(sees, store.entries()), store, clean, weights, card.step)) is not None:
        return there
    Room(store.folder, limits.disk).check(
        2 * len(content), "This model", promised=promised(store.entries(), store.folder)
    )
    run = secrets.token_hex(4)
    name = card.name or one_line(Path(file_name).stem, 80) or "imported"
    folder = store.folder_of(run)
    try:  # the files first, so that an entry never lacks them
        write_snapshot(folder, card.step, clean)
        save(Checkpoint(clean.model, clean.task, _clean_card(card, name)), folder)
        _write_down(store, run, name, owner, clean, card, private)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunStoreError(f"The file could not be kept here: {error.strerror or 'the disk refuses'}.") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return ImportResult(run, name, card.step, is_new=True)


def _write_down(
    store: RunStore, run: str, name: str, owner: str, checkpoint: Checkpoint, card: ImportedCard, private: bool
) -> None:
    """Insert the run and its metrics in one transaction."""
    assert checkpoint.task is not None
    values = {
        "id": run,
        "name": name,
        "owner": owner,
        "tags": json.dumps([TAG]),
        "preset": card.preset,
        "title": card.title or name,
        "about": card.about,
        "model": json.dumps(checkpoint.config.to_json()),
        "task": json.dumps(checkpoint.task.config.to_json()),
        "train": json.dumps(card.train.to_json()),
        "wanted": "auto",
        "state": "finished",
        "device": card.device,
        "step": card.step,
        "seconds": card.seconds,
        "message": card.left_out,
        "figures": json.dumps(card.figures),
        "created": time.time(),
        "private": int(private),
    }
    with store.database.writing() as db:
        insert_run(db, values)
        insert_rows(db, run, card.rows)


def _clean_card(card: ImportedCard, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "preset": card.preset,
        "title": card.title,
        "about": card.about,
        "seed": card.train.seed,
        "step": card.step,
        "train": card.train.to_json(),
        "device": card.device or "cpu",
        "seconds": card.seconds,
        "curve": fitting(card.rows),
        **({"figures": card.figures} if card.figures else {}),
    }


def _same(
    entries: Iterable[Entry], store: RunStore, checkpoint: Checkpoint, weights: bytes, step: int
) -> ImportResult | None:
    """Return the run among `entries` with equal weights at this step, or None."""
    assert checkpoint.task is not None
    settings = checkpoint.config.to_json(), checkpoint.task.config.to_json()
    for entry in entries:
        file = snapshot_file(store.folder_of(entry.id), step)
        try:
            if (entry.model, entry.task) != settings or file.stat().st_size != len(weights):
                continue
            if _numbers(file.read_bytes()) == _numbers(weights):
                return ImportResult(entry.id, entry.name, step, is_new=False)
        except OSError:  # no such file, or it is being removed
            continue
    return None


def _numbers(file: bytes) -> bytes:
    """Return the tensors of a safetensors file as bytes. The order of metadata in its header varies."""
    return file[8 + int.from_bytes(file[:8], "little") :]
