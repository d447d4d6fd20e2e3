"""The run store: what was asked for, how far it is, what was measured, and what people have told a run to do.

store = RunStore("checkpoints/runs")
run = store.add(preset("reverse"), owner="me")
store.rows(run, after=200)            # the metrics since step 200
store.send(run, "pause")              # a command that the worker obeys

Weights are not in it: they are in the folder of each run. Pages only read, and send commands; a run's worker writes.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xformer import notebook_html
from xformer.errors import RunStoreError
from xformer.presets import Preset
from xformer.training.database import Database
from xformer.training.entry import Entry, entry_from
from xformer.training.metrics_row import metrics_row
from xformer.training.run_statements import all_entries, entry_of, insert_rows, insert_run, put_command, set_columns

FILE = "runs.sqlite"
COMMANDS = ("pause", "resume", "step", "stop", "rate")
"""What a worker obeys; "rate" carries a new peak of the learning rate."""


class RunStore:
    """All runs in one folder, in which each also has a folder of its own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.database = Database(self.folder / FILE)

    def _repr_html_(self) -> str:
        """In a notebook: its runs, the latest first."""
        rows = [
            (one.id, one.name, one.preset, one.state, f"{one.step:,}", f"{one.seconds:.1f}") for one in self.entries()
        ]
        return notebook_html.card(
            f"{len(rows)} runs in {self.folder}",
            notebook_html.table(("run", "name", "preset", "state", "step", "seconds"), rows),
        )

    def folder_of(self, run: str) -> Path:
        """Where the weights of a run are."""
        return self.folder / run

    def add(
        self,
        settings: Preset,
        *,
        owner: str = "",
        name: str = "",
        device: str = "auto",
        parent: str | None = None,
        state: str = "queued",
        figures: dict[str, Any] | None = None,
        run: str | None = None,
        private: bool = False,
        sweep: dict[str, Any] | None = None,
        check: Callable[[Sequence[Entry]], None] = lambda entries: None,
        columns: Mapping[str, Any] | None = None,
    ) -> str:
        """Write down a new run and return its id; nothing is trained yet. `columns` are further ones, as the table has them.

        `check` sees all entries in the very transaction that adds this one, and may raise: of two who ask at the same moment
        for the last place, one gets it.
        """
        run = run or new_id()
        values = {
            "id": run,
            "name": plain(name) or settings.title,
            "owner": owner,
            "preset": settings.name,
            "title": settings.title,
            "about": settings.about,
            "model": json.dumps(settings.model.to_json()),
            "task": json.dumps(settings.task.to_json()),
            "train": json.dumps(settings.train.to_json()),
            "wanted": device,
            "parent": parent,
            "state": state,
            "figures": json.dumps(figures or {}),
            "created": time.time(),
            "private": int(private),
            "sweep": None if sweep is None else json.dumps(sweep),
            **(columns or {}),
        }
        with self.database.writing() as db:
            check([entry for entry in all_entries(db) if entry.deleted is None])
            insert_run(db, values)
        return run

    def entry(self, run: str) -> Entry:
        """One run. Raises `RunStoreError` when there is none of that id."""
        with self.database.reading() as db:
            return entry_of(db, run)

    def entries(self, *, deleted: bool = False) -> list[Entry]:
        """All runs, the latest first; with `deleted`, those that were thrown away instead."""
        if not self.database.file.exists():
            return []
        which = "NOT NULL" if deleted else "NULL"
        with self.database.reading() as db:
            found = [
                entry_from(row)
                for row in db.execute(f"SELECT * FROM runs WHERE deleted IS {which} ORDER BY number DESC")
            ]
        return list({entry.id: entry for entry in reversed(found)}.values())[
            ::-1
        ]  # a damaged run store can name one twice

    def rows(self, run: str, after: int = -1) -> list[dict[str, Any]]:
        """The metrics of a run past a step, one dictionary a report; rows that somebody has edited into none are left out."""
        with self.database.reading() as db:
            found = db.execute("SELECT step, row FROM metrics WHERE run = ? AND step > ? ORDER BY step", (run, after))
            return [row for row in (metrics_row(cell["step"], cell["row"]) for cell in found) if row]

    def n_rows(self, run: str) -> int:
        """How many rows were written down of a run; those that `rows` leaves out are damaged."""
        with self.database.reading() as db:
            return db.execute("SELECT count(*) FROM metrics WHERE run = ?", (run,)).fetchone()[0]

    def send(self, run: str, kind: str, value: float | None = None) -> None:
        """Tell the worker of a run something. Raises `RunStoreError` where there is no worker that could obey."""
        if kind not in COMMANDS:
            raise RunStoreError(f"A command is one of {', '.join(COMMANDS)}, got {kind!r}.")
        with self.database.writing() as db:
            entry = entry_of(db, run)
            if not entry.is_active:
                raise RunStoreError(f"The run “{entry.name}” is {entry.state}, so it cannot be told to {kind}.")
            if entry.sweep is not None and kind != "stop":
                raise RunStoreError(
                    f"The sweep “{entry.name}” trains many models at once and cannot be told to {kind}; stop it, and Resume "
                    "goes on from there."
                )
            put_command(db, run, kind, value)

    def rename(self, run: str, name: str) -> None:
        """Give a run another name."""
        name = plain(name)
        if not name:
            raise RunStoreError("A run needs a name with at least one letter, got none; for example “first try”.")
        self.change(run, name=name)

    def tag(self, run: str, tags: Sequence[str]) -> None:
        """Give a run these tags in place of those it has."""
        kept = list(dict.fromkeys(word for word in map(plain, tags) if word))[:12]
        self.change(run, tags=json.dumps(kept))

    def delete(self, run: str) -> None:
        """Throw a run away, a sweep with the runs that its models have become; `undelete` brings all of it back.

        Raises `RunStoreError` while it is being trained.
        """
        with self.database.writing() as db:
            entry = entry_of(db, run)
            if entry.is_active:
                raise RunStoreError(f"The run “{entry.name}” is {entry.state}; stop it before you delete it.")
            state = "stopped" if entry.state == "queued" else entry.state
            now = time.time()
            set_columns(db, run, deleted=now, **({} if state == entry.state else {"state": state}))
            if entry.sweep is not None:
                query = "UPDATE runs SET deleted = ? WHERE parent LIKE ? AND deleted IS NULL AND worker IS NULL"
                db.execute(query, (now, f"{run}/%"))

    def share(self, run: str) -> None:
        """Have everyone see a run that only its owner saw."""
        self.change(run, private=0)

    def undelete(self, run: str) -> None:
        """Take a run back that was thrown away."""
        with self.database.writing() as db:
            entry = entry_of(db, run)
            query = "UPDATE runs SET deleted = NULL WHERE parent LIKE ? AND deleted = ?"
            db.execute(query, (f"{run}/%", entry.deleted))
            set_columns(db, run, deleted=None)

    def change(self, run: str, **values: Any) -> None:
        """Set columns of a run. Raises `RunStoreError` when there is none of that id."""
        with self.database.writing() as db:
            entry_of(db, run)
            set_columns(db, run, **values)

    def put_rows(self, run: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write down metrics, in place of those of the same steps."""
        with self.database.writing() as db:
            insert_rows(db, run, rows)


def new_id() -> str:
    """What a run is called in the run store, in links, and as a folder."""
    return secrets.token_hex(4)


def plain(text: str) -> str:
    """What a person typed, as one short line that every chart and file name can carry."""
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:80]
