"""A model of a sweep becomes a run of the run store, with its files in a folder of its own; and it can be taken back.

The id that it will have is known from the beginning, so whatever ends the process halfway is put right the next time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from xformer.training.entry import Entry
from xformer.training.run_store import RunStore
from xformer.training.sweeps import Member

TAKEN_BACK = ("stopped", "interrupted")
"""The states of models that go on with their sweep."""


def become_run(
    store: RunStore, entry: Entry, member: Member, state: str, figures: dict[str, Any] | None = None, **columns: Any
) -> None:
    """Make a run of a model, in the state in which it left the stack."""

    def move_files(_: Sequence[Entry]) -> None:  # in the transaction: it is a run with files, or neither
        with suppress(FileNotFoundError):  # moved already, by a process that was killed before it could say so
            os.rename(member.folder(store, entry.id), store.folder_of(member.id))

    store.add(
        member.preset,
        owner=entry.owner,
        name=f"{entry.name} · {member.name}",
        device=entry.wanted,
        parent=f"{entry.id}/{member.number:03d}",
        state=state,
        figures=figures,
        run=member.id,
        private=bool(entry.private),
        check=move_files,
        columns={"device": entry.device, "tags": json.dumps(list(entry.tags)), **columns},
    )


def become_runs_again(store: RunStore, entry: Entry, members: Sequence[Member]) -> None:
    """Put right where files were moved, but the run was not written down, when its process was killed."""
    for member in members:
        moved, here = store.folder_of(member.id), member.folder(store, entry.id)
        with store.database.reading() as db:
            known = db.execute("SELECT 1 FROM runs WHERE id = ?", (member.id,)).fetchone()
        if known is None and moved.is_dir() and not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            os.rename(moved, here)


def take_back(store: RunStore, entry: Entry, members: Sequence[Member]) -> None:
    """Have the models that were stopped be no runs any more: they go on with their sweep."""
    for member in members:
        with store.database.writing() as db:
            found = db.execute(
                "SELECT 1 FROM runs WHERE id = ? AND worker IS NULL AND deleted IS NULL AND state IN (?, ?)",
                (member.id, *TAKEN_BACK),
            ).fetchone()
            if found is None:
                continue
            db.execute("DELETE FROM runs WHERE id = ?", (member.id,))
            with suppress(FileNotFoundError):
                os.rename(store.folder_of(member.id), member.folder(store, entry.id))
