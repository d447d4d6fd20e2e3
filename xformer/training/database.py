"""The file behind the run store: its tables, and transactions on it from any process or thread.

Every access opens its own connection: SQLite's are bound to a thread, and a page's threads come and go. The write-ahead log
lets pages read while a worker writes; each commit is atomic, and at worst the last moments before a power cut are missing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xformer.errors import RunStoreError

VERSION = 4
WAIT = 20.0
"""How long anybody waits for another's transaction to end, in seconds."""
TABLES = """
CREATE TABLE runs (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which runs were asked for; a clock can be set back
    id      TEXT NOT NULL UNIQUE,
    name    TEXT NOT NULL,
    owner   TEXT NOT NULL,
    tags    TEXT NOT NULL DEFAULT '[]',
    preset  TEXT NOT NULL,
    title   TEXT NOT NULL,
    about   TEXT NOT NULL,
    model   TEXT NOT NULL,
    task    TEXT NOT NULL,
    train   TEXT NOT NULL,
    wanted  TEXT NOT NULL,                      -- the device asked for
    parent  TEXT,                               -- what it was forked from, "RUN@STEP", or which sweep it is of, "RUN/003"
    state   TEXT NOT NULL,
    device  TEXT,
    turn    INTEGER NOT NULL DEFAULT 0,         -- when it last got its turn, counted over all runs
    worker  TEXT,                               -- the token of the process that has it; NULL when none has
    pid     INTEGER,
    step    INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    live    TEXT NOT NULL DEFAULT '{}',
    message TEXT NOT NULL DEFAULT '',
    figures TEXT NOT NULL DEFAULT '{}',
    created REAL NOT NULL,
    deleted REAL,
    unreported_starts INTEGER NOT NULL DEFAULT 0,  -- workers started since the last report of one
    private INTEGER NOT NULL DEFAULT 0,         -- 1: only its owner sees it
    sweep   TEXT                                -- of many models that are trained together: what differs, and their ids
);
CREATE TABLE metrics (
    run  TEXT NOT NULL,
    step INTEGER NOT NULL,
    row  TEXT NOT NULL,
    PRIMARY KEY (run, step)
) WITHOUT ROWID;
CREATE TABLE commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run    TEXT NOT NULL,
    kind   TEXT NOT NULL,
    value  REAL,
    sent   REAL NOT NULL                        -- on this machine's monotonic clock, which nobody can set back
);
CREATE INDEX commands_of ON commands (run, number);
"""
SINCE_3 = ("ALTER TABLE runs ADD COLUMN unreported_starts INTEGER NOT NULL DEFAULT 0",)
"""What a run store of version 3 lacks."""
SINCE_2 = (
    "ALTER TABLE runs ADD COLUMN sweep TEXT",
    # A setting that tasks have since then; what is equal has to be written alike.
    "UPDATE runs SET task = json_set(task, '$.train_share', 0.75) WHERE json_valid(task) AND json_type(task) = 'object'",
    *SINCE_3,
)
"""What a run store of version 2 lacks."""
SINCE_1 = ("ALTER TABLE runs ADD COLUMN private INTEGER NOT NULL DEFAULT 0", *SINCE_2)


class Database:
    """One SQLite file, made on first use. Raises `RunStoreError` with one sentence when it cannot be read or written."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for looking; sees one state of the run store throughout."""
        with self._connection() as db:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it happens, or nothing; no one else writes meanwhile."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                if db.in_transaction:  # a full disk has ended it already
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self.connect()
            try:
                yield db
            finally:
                db.close()
        except UnicodeDecodeError as error:  # SQLite's own message, of a table whose name is damaged
            raise RunStoreError(
                f"The book of runs ({self.file.name}) cannot be used: its tables are damaged."
            ) from error
        except (sqlite3.Error, OSError) as error:
            raise RunStoreError(f"The book of runs ({self.file.name}) cannot be used: {error}.") from error

    def connect(self) -> sqlite3.Connection:
        """An open connection, the tables there. Keep one open in a process that writes often: the last one to close
        writes the log back into the file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.file.is_fifo():  # SQLite would wait for ever
            raise OSError("it is a pipe")
        db = sqlite3.connect(self.file, timeout=WAIT, isolation_level=None)
        try:
            db.row_factory = sqlite3.Row
            db.text_factory = _text
            db.execute("PRAGMA synchronous = NORMAL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found < VERSION:
                found = self._create(db)
            if found != VERSION:
                raise RunStoreError(
                    f"The book of runs ({self.file.name}) is of version {found}, and this program reads {VERSION}; "
                    "move it away to start a new one."
                )
        except BaseException:
            db.close()
            raise
        return db

    def _create(self, db: sqlite3.Connection) -> int:
        """Make the tables, or bring those of an older version up to date; somebody else may be quicker."""
        _write_ahead(db)
        db.execute("BEGIN IMMEDIATE")
        found = db.execute("PRAGMA user_version").fetchone()[0]
        for statement in {0: TABLES.split(";\n"), 1: SINCE_1, 2: SINCE_2, 3: SINCE_3}.get(found, []):
            db.execute(statement)
        if found < VERSION:
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
        return VERSION


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch the log on. Two that do it at once would wait for each other, so SQLite refuses one of them without waiting."""
    given_up = time.monotonic() + WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > given_up:
                raise
        time.sleep(0.01)


def _text(cell: bytes) -> str:
    """A text of the file, also one that is no UTF-8: else one such cell would keep all others from being read."""
    return cell.decode("utf-8", "replace")
