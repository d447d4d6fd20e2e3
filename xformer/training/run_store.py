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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xformer import notebook_html
from xformer.config import TrainConfig
from xformer.errors import ConfigError, RunStoreError
from xformer.presets import Preset
from xformer.task_limits import TASK_LIMITS
from xformer.training.entry import MOVES, NUMBERED, Entry, entry_from, metrics_row

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


Row = Mapping[str, Any]


def latest_rows(store: RunStore) -> dict[str, dict[str, Any]]:
    """The last metrics that can be read of each run that has any."""
    query = (
        "SELECT id, step_of AS step, (SELECT row FROM metrics WHERE run = id AND step = step_of) AS row FROM "
        "(SELECT id, (SELECT max(step) FROM metrics WHERE run = id) AS step_of FROM runs)"
    )
    with store.database.reading() as db:
        found = {line["id"]: (line["step"], line["row"]) for line in db.execute(query) if line["row"] is not None}
    latest = {run: metrics_row(*last) or next(reversed(store.rows(run)), {}) for run, last in found.items()}
    return {run: row for run, row in latest.items() if row}


def exact_match(entry: Entry, row: Row) -> float | None:
    """The share of unseen sequences that a run gets right: as scored at its end, else as last reported. None of a text."""
    if has_no_answer(entry):
        return None
    value = entry.figures.get("exact_match", row.get("held_out_exact_match"))
    return float(value) if isinstance(value, (int, float)) else None


def has_no_answer(entry: Entry) -> bool:
    """Whether a run learns to go on with a text, where nothing is right or wrong."""
    limits = TASK_LIMITS.get(entry.task.get("name", ""))
    return limits is not None and limits.is_text
