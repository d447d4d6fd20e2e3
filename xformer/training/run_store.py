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
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError, RunStoreError
from xformer.presets import Preset
from xformer.training.database import Database
from xformer.training.repair import metrics_row, repaired, where
from xformer.training.schedule import with_peak

FILE = "runs.sqlite"
MOVES = {
    "queued": ("running", "stopped"),
    "running": ("paused", "queued", "stopped", "finished", "failed", "interrupted"),
    "paused": ("running", "queued", "stopped", "finished", "failed", "interrupted"),
    "stopped": ("queued",),
    "interrupted": ("queued",),
    "failed": ("queued",),
    "finished": (),
}
"""From which state a run may go to which."""
RESUMABLE = tuple(state for state, moves in MOVES.items() if "queued" in moves)
ELSEWHERE = "elsewhere"
"""The device of a run that another program trains: it can be watched and stopped, and is resumed there."""
COMMANDS = ("pause", "resume", "step", "stop", "rate")
"""What a worker obeys; "rate" carries a new peak of the learning rate."""


@dataclass(frozen=True)
class Entry:
    """One run as the run store has it; configurations as the plain JSON values that were written down."""

    number: int
    id: str
    name: str
    owner: str
    tags: tuple[str, ...]
    preset: str
    title: str
    about: str
    model: dict[str, Any]
    task: dict[str, Any]
    train: dict[str, Any]
    wanted: str
    parent: str | None
    state: str
    device: str | None
    turn: int
    worker: str | None
    pid: int | None
    step: int
    seconds: float
    live: dict[str, Any]
    """Figures of the latest step: loss, gradient_norm, learning_rate, steps_per_second, tokens_per_second."""
    message: str
    figures: dict[str, Any]
    """The score on unseen examples once it is finished."""
    created: float
    deleted: float | None
    private: int = 0
    """1 where only its owner sees it."""

    @property
    def is_active(self) -> bool:
        """Whether a process has it."""
        return self.worker is not None

    def settings(self) -> Preset:
        """What is to be trained. Raises `ConfigError` where the run store was edited into something that is none."""
        return Preset(
            self.preset,
            self.title,
            self.about,
            ModelConfig.from_json(self.model),
            TaskConfig.from_json(self.task),
            TrainConfig.from_json(self.train),
        )


class RunStore:
    """All runs in one folder, in which each also has a folder of its own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.database = Database(self.folder / FILE)

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
        check: Callable[[Sequence[Entry]], None] = lambda entries: None,
    ) -> str:
        """Write down a new run and return its id; nothing is trained yet.

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
                _entry(row) for row in db.execute(f"SELECT * FROM runs WHERE deleted IS {which} ORDER BY number DESC")
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
        """Throw a run away; `undelete` brings it back. Raises `RunStoreError` while it is being trained."""
        with self.database.writing() as db:
            entry = entry_of(db, run)
            if entry.is_active:
                raise RunStoreError(f"The run “{entry.name}” is {entry.state}; stop it before you delete it.")
            state = "stopped" if entry.state == "queued" else entry.state
            set_columns(db, run, deleted=time.time(), **({} if state == entry.state else {"state": state}))

    def share(self, run: str) -> None:
        """Have everyone see a run that only its owner saw."""
        self.change(run, private=0)

    def undelete(self, run: str) -> None:
        """Take a run back that was thrown away."""
        self.change(run, deleted=None)

    def change(self, run: str, **values: Any) -> None:
        """Set columns of a run. Raises `RunStoreError` when there is none of that id."""
        with self.database.writing() as db:
            entry_of(db, run)
            set_columns(db, run, **values)

    def put_rows(self, run: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write down metrics, in place of those of the same steps."""
        with self.database.writing() as db:
            insert_rows(db, run, rows)


def entry_of(db: sqlite3.Connection, run: str) -> Entry:
    """One run within a transaction. Raises `RunStoreError` when there is none of that id."""
    condition, value = where(run)
    row = db.execute(f"SELECT * FROM runs WHERE {condition}", (value,)).fetchone()
    if row is None:
        raise no_such_run(run)
    return _entry(row)


def no_such_run(run: str) -> RunStoreError:
    """What is said of a run that is not there."""
    return RunStoreError(f"There is no run {run!r:.60}; it may have been deleted.")


def all_entries(db: sqlite3.Connection) -> list[Entry]:
    """All runs within a transaction, those that were thrown away too."""
    return [_entry(row) for row in db.execute("SELECT * FROM runs")]


def move(db: sqlite3.Connection, entry: Entry, state: str, **values: Any) -> None:
    """Take a run to another state, within a transaction. Raises `RunStoreError` for a move that is none of `MOVES`."""
    if state not in MOVES.get(entry.state, ()):
        raise RunStoreError(f"The run “{entry.name}” is {entry.state}, so it cannot become {state}.")
    set_columns(db, entry.id, state=state, **values)


def set_columns(db: sqlite3.Connection, run: str, **values: Any) -> None:
    """Set columns of a run, within a transaction."""
    condition, of = where(run)
    changes = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE runs SET {changes} WHERE {condition}", (*values.values(), of))


def put_command(db: sqlite3.Connection, run: str, kind: str, value: float | None = None) -> None:
    """Leave a command for a run's worker, within a transaction."""
    db.execute(
        "INSERT INTO commands (run, kind, value, sent) VALUES (?, ?, ?, ?)", (run, kind, value, time.monotonic())
    )


def change_peak(db: sqlite3.Connection, run: str, after: int, peak: float) -> bool:
    """Have another peak of the learning rate hold after a step; where it is none, the run's message says so."""
    try:
        train = with_peak(TrainConfig.from_json(entry_of(db, run).train), after, peak)
    except ConfigError as error:
        set_columns(db, run, message=str(error))
        return False
    set_columns(db, run, train=json.dumps(train.to_json()))
    return True


def insert_run(db: sqlite3.Connection, values: dict[str, Any]) -> None:
    """Write a run down, column by column, within a transaction."""
    db.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks(values)})", tuple(values.values()))


def insert_rows(db: sqlite3.Connection, run: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write down metrics, within a transaction."""
    values = [(run, row["step"], json.dumps(row)) for row in rows]
    db.executemany("INSERT OR REPLACE INTO metrics (run, step, row) VALUES (?, ?, ?)", values)


def new_id() -> str:
    """What a run is called in the run store, in links, and as a folder."""
    return secrets.token_hex(4)


def marks(values: Iterable[Any]) -> str:
    """A question mark for each value of a statement."""
    return ", ".join("?" for _ in values)


def plain(text: str) -> str:
    """What a person typed, as one short line that every chart and file name can carry."""
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:80]


NAMES = tuple(field.name for field in fields(Entry))


def _entry(row: sqlite3.Row) -> Entry:
    """A run as far as its row can be read; columns that are none of this program's are left alone."""
    there = row.keys()
    return Entry(**repaired({name: row[name] if name in there else None for name in NAMES}, MOVES))
