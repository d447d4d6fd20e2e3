"""The runs that have weights to look at, and the steps that they kept them of."""

from __future__ import annotations

from pages.shared import run_store
from xformer.checkpoints import FILE
from xformer.errors import RunStoreError
from xformer.training.snapshots import snapshot_steps


def trained() -> dict[str, str]:
    """The runs that have weights to look at, the latest first: their ids and names."""
    try:
        return {entry.id: entry.name for entry in run_store.entries() if has_weights(entry.id)}
    except RunStoreError:
        return {}


def has_weights(run: str) -> bool:
    """Whether there is anything of a run to look at yet."""
    folder = run_store.store().folder_of(run)
    try:
        return (folder / FILE).exists() or bool(snapshot_steps(folder))
    except OSError:  # a folder that may not be read
        return False


def steps_of(run: str) -> list[int]:
    """The steps of a run that can be looked at, in order."""
    folder = run_store.store().folder_of(run)
    steps = snapshot_steps(folder)
    if not steps and (folder / FILE).exists():
        return [run_store.store().entry(run).step]
    return steps
