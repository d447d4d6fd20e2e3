"""The run store: settings, states, metrics and pending commands of all runs, in one SQLite file.

    store = RunStore("checkpoints/runs")
    run = store.add(preset("reverse"), owner="me")
    store.rows(run, after=200)            # the metrics after step 200
    store.send(run, "pause")              # a command for the worker

The weights are in the folder of each run. Pages read the store and send commands; the worker of a run writes to it.

Every access opens its own connection, because SQLite connections are bound to a thread. The write-ahead log lets pages read
while a worker writes. Each commit is atomic; a power failure loses at most the latest commits.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from xformer.config import TrainConfig
from xformer.errors import ConfigError, RunStoreError
from xformer.presets import Preset
from xformer.task_limits import TASK_LIMITS
from xformer.training.run_record import MOVES, NUMBERED, SETTINGS, RunRecord, entry_from, metrics_row

FILE = "runs.sqlite"
COMMANDS = ("pause", "resume", "step", "stop", "rate")
"""The commands that a worker accepts. The value of "rate" is a new peak learning rate."""


class RunStore:
    """All runs of one folder, which contains a folder for each run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.database = Database(self.folder / FILE)

    def _repr_html_(self) -> str:
        """Show the runs in a notebook, newest first."""
        from xformer import notebook_html  # only here: it needs numpy

        columns = ("run", "name", "preset", "state", "step", "seconds")
        rows = [(r.id, r.name, r.preset, r.state, f"{r.step:,}", f"{r.seconds:.1f}") for r in self.entries()]
        return notebook_html.card(f"{len(rows)} runs in {self.folder}", notebook_html.table(columns, rows))

    def folder_of(self, run: str) -> Path:
        """Return the folder with the weights of a run."""
        return self.folder / run

    @contextmanager
    def removed_on_failure(self, run: str) -> Iterator[None]:
        """Remove the folder of a new run if the block fails. Turns an `OSError` into `RunStoreError`."""
        try:
            yield
        except BaseException as error:
            shutil.rmtree(self.folder_of(run), ignore_errors=True)
            if isinstance(error, OSError):
                raise RunStoreError(f"The run could not be saved: {error.strerror or error}.") from error
            raise

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
        check: Callable[[Sequence[RunRecord]], None] = lambda entries: None,
        columns: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a run without starting it, and return its id.

        `columns` are further columns of the table. `check` receives all entries within the transaction that adds this one, and
        may raise; of two concurrent requests for the last free place, only one succeeds.
        """
        run = run or new_id()
        values: dict[str, Any] = {
            "id": run, "name": one_line(name) or settings.title, "owner": owner, "wanted": device, "parent": parent,
            "preset": settings.name, "title": settings.title, "about": settings.about, "state": state,
            "figures": json.dumps(figures or {}), "created": time.time(), "private": int(private),
            "sweep": None if sweep is None else json.dumps(sweep),
        }  # fmt: skip
        values |= {kind: json.dumps(getattr(settings, kind).to_json()) for kind in SETTINGS} | dict(columns or {})
        with self.database.writing() as db:
            check([entry for entry in all_entries(db) if entry.deleted is None])
            insert_run(db, values)
        return run

    def entry(self, run: str) -> RunRecord:
        """Return one run. Raises `RunStoreError` if the id is unknown."""
        with self.database.reading() as db:
            return entry_of(db, run)

    def entries(self, *, deleted: bool = False) -> list[RunRecord]:
        """Return all runs, newest first; with `deleted`, the deleted runs instead."""
        if not self.database.file.exists():
            return []
        query = f"SELECT * FROM runs WHERE deleted IS {'NOT NULL' if deleted else 'NULL'} ORDER BY number"
        with self.database.reading() as db:  # keyed by id, because a damaged run store can contain an id twice
            found = {entry.id: entry for entry in map(entry_from, db.execute(query))}
        return list(found.values())[::-1]

    def ids(self) -> set[str]:
        """Return the ids of all runs, including deleted ones."""
        with self.database.reading() as db:
            return {row["id"] for row in db.execute("SELECT id FROM runs")}

    def rows(self, run: str, after: int = -1) -> list[dict[str, Any]]:
        """Return the metrics of a run after a step, one dictionary per report. Damaged rows are skipped."""
        with self.database.reading() as db:
            found = db.execute("SELECT step, row FROM metrics WHERE run = ? AND step > ? ORDER BY step", (run, after))
            return [row for row in (metrics_row(cell["step"], cell["row"]) for cell in found) if row]

    def n_rows(self, run: str) -> int:
        """Return the number of rows of metrics of a run, including damaged rows."""
        with self.database.reading() as db:
            return db.execute("SELECT count(*) FROM metrics WHERE run = ?", (run,)).fetchone()[0]

    def send(self, run: str, kind: str, value: float | None = None) -> None:
        """Send a command to the worker of a run. Raises `RunStoreError` if the run has no worker."""
        if kind not in COMMANDS:
            raise RunStoreError(f"A command must be one of {', '.join(COMMANDS)}, got {kind!r}.")
        with self.database.writing() as db:
            entry = entry_of(db, run)
            if not entry.is_active:
                raise RunStoreError(f"The run “{entry.name}” is {entry.state}, so it cannot {kind}.")
            if entry.sweep is not None and kind != "stop":
                what = f"The sweep “{entry.name}” trains many models at once and cannot {kind}"
                raise RunStoreError(f"{what}; stop it, and Resume continues from there.")
            put_command(db, run, kind, value)

    def rename(self, run: str, name: str) -> None:
        """Rename a run."""
        if not (name := one_line(name)):
            raise RunStoreError("A run needs a name with at least one letter, got none; for example “first try”.")
        self.change(run, name=name)

    def tag(self, run: str, tags: Sequence[str]) -> None:
        """Replace the tags of a run."""
        kept = list(dict.fromkeys(word for word in map(one_line, tags) if word))[:12]
        self.change(run, tags=json.dumps(kept))

    def delete(self, run: str) -> None:
        """Delete a run and, for a sweep, the runs of its models; `undelete` restores them.

        Raises `RunStoreError` while a process has the run.
        """
        with self.database.writing() as db:
            entry = entry_of(db, run)
            if entry.is_active:
                raise RunStoreError(f"The run “{entry.name}” is {entry.state}; stop it before you delete it.")
            now = time.time()
            set_columns(db, run, deleted=now, **({"state": "stopped"} if entry.state == "queued" else {}))
            if entry.sweep is not None:
                query = "UPDATE runs SET deleted = ? WHERE parent LIKE ? AND deleted IS NULL AND worker IS NULL"
                db.execute(query, (now, f"{run}/%"))

    def share(self, run: str) -> None:
        """Make a private run public."""
        self.change(run, private=0)

    def undelete(self, run: str) -> None:
        """Restore a deleted run and, for a sweep, the runs that were deleted with it."""
        with self.database.writing() as db:
            entry = entry_of(db, run)
            query = "UPDATE runs SET deleted = NULL WHERE parent LIKE ? AND deleted = ?"
            db.execute(query, (f"{run}/%", entry.deleted))
            set_columns(db, run, deleted=None)

    def change(self, run: str, **values: Any) -> None:
        """Set columns of a run. Raises `RunStoreError` if the id is unknown."""
        with self.database.writing() as db:
            entry_of(db, run)
            set_columns(db, run, **values)

    def put_rows(self, run: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write metrics, replacing rows of the same steps."""
        with self.database.writing() as db:
            insert_rows(db, run, rows)


def new_id() -> str:
    """Return a new random id, which names a run in the run store, in links, and its folder."""
    return secrets.token_hex(4)


def one_line(text: Any, most: int = 80) -> str:
    """Return at most `most` printable characters on one line; an empty string for a value that is not a string."""
    if not isinstance(text, str):
        return ""
    text = text[: 4 * most].encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:most]


VERSION = 5

WAIT = 20.0
"""Timeout in seconds for the transaction of another connection."""

TABLES = """
CREATE TABLE runs (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which runs were asked for; a clock can be set back
    id      TEXT NOT NULL UNIQUE,
    name    TEXT NOT NULL, owner TEXT NOT NULL, tags TEXT NOT NULL DEFAULT '[]',
    preset  TEXT NOT NULL, title TEXT NOT NULL, about TEXT NOT NULL,
    model   TEXT NOT NULL, task TEXT NOT NULL, train TEXT NOT NULL,
    wanted  TEXT NOT NULL,                      -- the device asked for
    parent  TEXT,                               -- what it was forked from, "RUN@STEP", or which sweep it is of, "RUN/003"
    state   TEXT NOT NULL, device TEXT,
    node    TEXT,                               -- the node of a Ray cluster that has it; NULL: this machine
    turn    INTEGER NOT NULL DEFAULT 0,         -- when it last got its turn, counted over all runs
    worker  TEXT, pid INTEGER,                  -- the token of the process that has it; NULL when none has
    step    INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0,
    live    TEXT NOT NULL DEFAULT '{}', message TEXT NOT NULL DEFAULT '', figures TEXT NOT NULL DEFAULT '{}',
    created REAL NOT NULL, deleted REAL,
    unreported_starts INTEGER NOT NULL DEFAULT 0,  -- workers started since the last report of one
    private INTEGER NOT NULL DEFAULT 0,         -- 1: only its owner sees it
    sweep   TEXT                                -- of many models that are trained together: what differs, and their ids
);
CREATE TABLE metrics (run TEXT NOT NULL, step INTEGER NOT NULL, row TEXT NOT NULL, PRIMARY KEY (run, step)) WITHOUT ROWID;
CREATE TABLE commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL, kind TEXT NOT NULL, value REAL,
    sent REAL NOT NULL                          -- on this machine's monotonic clock, which cannot be set back
);
CREATE INDEX commands_of ON commands (run, number);
"""


class Database:
    """One SQLite file, created on first use. The methods raise `RunStoreError` if the file cannot be used."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a connection that reads a consistent snapshot of the run store."""
        return self._transaction("BEGIN")

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a connection in a transaction, which is rolled back on any exception."""
        return self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self.connect()) as db, db:  # the connection itself commits, or rolls back on an exception
                db.execute(begin)
                yield db
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite's message quotes a damaged table name
            why = "its tables are damaged" if isinstance(error, UnicodeDecodeError) else error
            raise RunStoreError(f"The run store ({self.file.name}) cannot be used: {why}.") from error

    def connect(self) -> sqlite3.Connection:
        """Open a connection to a file whose tables exist and are up to date.

        A process that writes often should keep one open, because closing the last connection writes the log back into the file.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.file.is_fifo():  # SQLite would block forever
            raise OSError("it is a pipe")
        db = sqlite3.connect(self.file, timeout=WAIT, isolation_level=None)
        try:
            db.row_factory = sqlite3.Row
            db.text_factory = lambda cell: cell.decode("utf-8", "replace")  # invalid UTF-8 in one cell must not raise
            db.execute("PRAGMA synchronous = NORMAL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                found = self._create(db)
            if found != VERSION:
                what = f"The run store ({self.file.name}) has version {found}, and this program reads version {VERSION}"
                raise RunStoreError(f"{what}; move it away to start a new one.")
        except BaseException:
            db.close()
            raise
        return db

    def _create(self, db: sqlite3.Connection) -> int:
        """Create the tables of a new file, unless another process has just done so. Returns the version."""
        _write_ahead(db)
        db.execute("BEGIN IMMEDIATE")
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found == 0:
            for statement in TABLES.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
        return found or VERSION


def _write_ahead(db: sqlite3.Connection) -> None:
    """Enable the write-ahead log. Of two concurrent attempts SQLite rejects one without waiting, so this retries."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def where(run: str) -> tuple[str, str | int]:
    """Return the SQL condition that selects a run, and its parameter: by id, or by number if the id is damaged."""
    numbered = NUMBERED.fullmatch(run)
    return ("number = ?", int(numbered[1])) if numbered else ("id = ?", run)


def entry_of(db: sqlite3.Connection, run: str) -> RunRecord:
    """Return one run. Raises `RunStoreError` if the id is unknown."""
    condition, value = where(run)
    row = db.execute(f"SELECT * FROM runs WHERE {condition}", (value,)).fetchone()
    if row is None:
        raise no_such_run(run)
    return entry_from(row)


def owned_entry(db: sqlite3.Connection, entry: RunRecord) -> RunRecord:
    """Return the current entry of a run. Raises `RunStoreError` if another process has it."""
    found = entry_of(db, entry.id)
    if found.worker != entry.worker:
        raise RunStoreError(f"The run “{entry.name}” has been given to another process.")
    return found


def no_such_run(run: str) -> RunStoreError:
    """Return the exception for an unknown id."""
    return RunStoreError(f"There is no run {run!r:.60}; it may have been deleted.")


def all_entries(db: sqlite3.Connection) -> list[RunRecord]:
    """Return all runs, including deleted ones."""
    return [entry_from(row) for row in db.execute("SELECT * FROM runs")]


def move(db: sqlite3.Connection, entry: RunRecord, state: str, **values: Any) -> None:
    """Change the state of a run. Raises `RunStoreError` for a transition that `MOVES` does not allow."""
    if state not in MOVES.get(entry.state, ()):
        raise RunStoreError(f"The run “{entry.name}” is {entry.state}, so it cannot become {state}.")
    set_columns(db, entry.id, state=state, **values)


def set_columns(db: sqlite3.Connection, run: str, **values: Any) -> None:
    """Set columns of a run."""
    condition, key = where(run)
    changes = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE runs SET {changes} WHERE {condition}", (*values.values(), key))


def put_command(db: sqlite3.Connection, run: str, kind: str, value: float | None = None) -> None:
    """Add a command for the worker of a run."""
    values = run, kind, value, time.monotonic()
    db.execute("INSERT INTO commands (run, kind, value, sent) VALUES (?, ?, ?, ?)", values)


def has_stop(db: sqlite3.Connection, run: str) -> bool:
    """Return whether a stop command is pending for the worker of a run."""
    return db.execute("SELECT 1 FROM commands WHERE run = ? AND kind = 'stop'", (run,)).fetchone() is not None


def change_peak(db: sqlite3.Connection, run: str, after: int, peak: float) -> bool:
    """Set a new peak learning rate after a step. Returns False for an invalid value, which the run's message then reports."""
    from xformer.training.recipe import with_peak  # imported here because its module needs torch

    try:
        train = with_peak(TrainConfig.from_json(entry_of(db, run).train), after, peak)
    except ConfigError as error:
        set_columns(db, run, message=str(error))
        return False
    set_columns(db, run, train=json.dumps(train.to_json()))
    return True


def insert_run(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Insert a run with these columns."""
    marks = ", ".join("?" for _ in values)
    db.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def insert_rows(db: sqlite3.Connection, run: str, rows: Iterable[dict[str, Any]]) -> None:
    """Insert metrics, replacing rows of the same steps."""
    values = [(run, row["step"], json.dumps(row)) for row in rows]
    db.executemany("INSERT OR REPLACE INTO metrics (run, step, row) VALUES (?, ?, ?)", values)


Row = Mapping[str, Any]


def latest_rows(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return the last readable row of metrics of each run that has one."""
    query = (
        "SELECT id, step_of AS step, (SELECT row FROM metrics WHERE run = id AND step = step_of) AS row FROM "
        "(SELECT id, (SELECT max(step) FROM metrics WHERE run = id) AS step_of FROM runs)"
    )
    with store.database.reading() as db:
        found = {line["id"]: (line["step"], line["row"]) for line in db.execute(query) if line["row"] is not None}
    latest = {run: metrics_row(*last) or next(reversed(store.rows(run)), {}) for run, last in found.items()}
    return {run: row for run, row in latest.items() if row}


def exact_match(entry: RunRecord, row: Row) -> float | None:
    """Return the exact match of a run: its final score, or else its last report. None for a task without right answers."""
    if has_no_answer(entry):
        return None
    value = entry.figures.get("exact_match", row.get("held_out_exact_match"))
    return float(value) if isinstance(value, (int, float)) else None


def has_no_answer(entry: RunRecord) -> bool:
    """Return whether the task of a run is to continue a text, where no answer is right or wrong."""
    limits = TASK_LIMITS.get(entry.task.get("name", ""))
    return limits is not None and limits.is_text
