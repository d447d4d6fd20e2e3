"""What is asked of the tables of the run store, and written into them that somebody has begun."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from xformer.config import TrainConfig
from xformer.errors import ConfigError, RunStoreError
from xformer.training.cells import NUMBERED
from xformer.training.entry import MOVES, Entry, entry_from


def where(run: str) -> tuple[str, str | int]:
    """The condition that finds a run in the table, by its id, or by its number where the id cannot be read."""
    numbered = NUMBERED.fullmatch(run)
    return ("number = ?", int(numbered[1])) if numbered else ("id = ?", run)


def entry_of(db: sqlite3.Connection, run: str) -> Entry:
    """One run. Raises `RunStoreError` when there is none of that id."""
    condition, value = where(run)
    row = db.execute(f"SELECT * FROM runs WHERE {condition}", (value,)).fetchone()
    if row is None:
        raise no_such_run(run)
    return entry_from(row)


def no_such_run(run: str) -> RunStoreError:
    """What is said of a run that is not there."""
    return RunStoreError(f"There is no run {run!r:.60}; it may have been deleted.")


def all_entries(db: sqlite3.Connection) -> list[Entry]:
    """All runs, those that were thrown away too."""
    return [entry_from(row) for row in db.execute("SELECT * FROM runs")]


def move(db: sqlite3.Connection, entry: Entry, state: str, **values: Any) -> None:
    """Take a run to another state. Raises `RunStoreError` for a move that is none of `MOVES`."""
    if state not in MOVES.get(entry.state, ()):
        raise RunStoreError(f"The run “{entry.name}” is {entry.state}, so it cannot become {state}.")
    set_columns(db, entry.id, state=state, **values)


def set_columns(db: sqlite3.Connection, run: str, **values: Any) -> None:
    """Set columns of a run."""
    condition, of = where(run)
    changes = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE runs SET {changes} WHERE {condition}", (*values.values(), of))


def put_command(db: sqlite3.Connection, run: str, kind: str, value: float | None = None) -> None:
    """Leave a command for a run's worker."""
    db.execute(
        "INSERT INTO commands (run, kind, value, sent) VALUES (?, ?, ?, ?)", (run, kind, value, time.monotonic())
    )


def change_peak(db: sqlite3.Connection, run: str, after: int, peak: float) -> bool:
    """Set another peak of the learning rate from a step on. For a peak that is not valid, the run's message says so."""
    from xformer.training.recipe import with_peak  # only now: its module needs torch, and a list of runs does not

    try:
        train = with_peak(TrainConfig.from_json(entry_of(db, run).train), after, peak)
    except ConfigError as error:
        set_columns(db, run, message=str(error))
        return False
    set_columns(db, run, train=json.dumps(train.to_json()))
    return True


def insert_run(db: sqlite3.Connection, values: dict[str, Any]) -> None:
    """Write a run down, column by column."""
    db.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks(values)})", tuple(values.values()))


def insert_rows(db: sqlite3.Connection, run: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write down metrics."""
    values = [(run, row["step"], json.dumps(row)) for row in rows]
    db.executemany("INSERT OR REPLACE INTO metrics (run, step, row) VALUES (?, ?, ?)", values)


def marks(values: Iterable[Any]) -> str:
    """A question mark for each value of a statement."""
    return ", ".join("?" for _ in values)
