"""The file behind the run store: transactions from several processes, and files that are none of ours."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny import tiny_preset
from xformer.errors import RunStoreError
from xformer.training.database import VERSION, Database
from xformer.training.run_store import RunStore

FORK = multiprocessing.get_context("fork")


def put(db: sqlite3.Connection, run: str = "a") -> None:
    db.execute("INSERT INTO commands (run, kind, sent) VALUES (?, 'stop', 0)", (run,))


def n_commands(database: Database) -> int:
    with database.reading() as db:
        return db.execute("SELECT count(*) FROM commands").fetchone()[0]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "deep" / "runs.sqlite")


def test_the_file_is_made_on_first_use(database: Database) -> None:
    assert not database.file.parent.exists()
    assert n_commands(database) == 0
    with sqlite3.connect(database.file) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


def test_all_of_a_transaction_or_nothing(database: Database) -> None:
    with pytest.raises(KeyError), database.writing() as db:  # noqa: PT012  the error comes after the statement
        put(db)
        raise KeyError
    assert n_commands(database) == 0
    with database.writing() as db:
        put(db)
    assert n_commands(database) == 1


def test_a_reader_sees_one_state_throughout(database: Database) -> None:
    with database.writing() as db:
        put(db)
    with database.reading() as db:
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 1
        with database.writing() as other:
            put(other)
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 1
    assert n_commands(database) == 2


def add_some(file: Path, start: Any, n: int) -> None:
    database = Database(file)
    start.wait()
    for _ in range(n):
        with database.writing() as db:
            count = db.execute("SELECT count(*) FROM commands").fetchone()[0]
            time.sleep(0.002)  # two that are here at once would both see the same number
            put(db, str(count))


def test_processes_that_make_the_book_at_once_and_write_at_once(database: Database) -> None:
    start = FORK.Barrier(4)
    processes = [FORK.Process(target=add_some, args=(database.file, start, 12)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with database.reading() as db:
        runs = [int(row["run"]) for row in db.execute("SELECT run FROM commands ORDER BY number")]
    assert runs == list(range(48))


def make_many(folder: Path, start: Any, n: int) -> None:
    for number in range(n):
        start.wait()
        with Database(folder / f"{number}.sqlite").writing() as db:
            put(db)


def test_who_finds_the_book_half_made_waits_for_it(tmp_path: Path) -> None:
    n_files, n_processes = 100, 4  # SQLite refuses one of two that switch its log on at once, in about 1 of 30 tries
    start = FORK.Barrier(n_processes, timeout=20)
    processes = [FORK.Process(target=make_many, args=(tmp_path, start, n_files)) for _ in range(n_processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * n_processes
    assert [n_commands(Database(tmp_path / f"{number}.sqlite")) for number in range(n_files)] == [n_processes] * n_files


def die_while_writing(file: Path) -> None:
    with Database(file).writing() as db:
        put(db)
        os._exit(9)


def test_a_process_that_dies_while_it_writes_leaves_nothing_and_blocks_nobody(database: Database) -> None:
    with database.writing() as db:
        put(db)
    process = FORK.Process(target=die_while_writing, args=(database.file,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    with database.writing() as db:
        put(db)
    assert n_commands(database) == 2


def test_a_book_from_another_version_is_left_alone(database: Database) -> None:
    database.file.parent.mkdir()
    with sqlite3.connect(database.file) as db:
        db.execute("PRAGMA user_version = 7")
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = database.file.read_bytes()
    for access in (database.reading, database.writing):
        with pytest.raises(
            RunStoreError, match=r"runs\.sqlite\) is of version 7, and this program reads 4; move it away"
        ):
            access().__enter__()
    assert database.file.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be looked at" * 20, b"SQLite format 3\0" * 99]
)
def test_a_file_that_is_no_book_is_one_sentence(database: Database, content: bytes) -> None:
    database.file.parent.mkdir()
    database.file.write_bytes(content)
    with pytest.raises(RunStoreError, match=r"^The book of runs \(runs\.sqlite\) cannot be used: .*\.$"):
        database.reading().__enter__()
    assert database.file.read_bytes() == content


def test_a_folder_where_a_file_should_be(database: Database) -> None:
    database.file.mkdir(parents=True)
    with pytest.raises(RunStoreError, match="cannot be used: unable to open database file"):
        database.reading().__enter__()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunStoreError, match=r"cannot be used: .*Read-only file system"):
        Database(tmp_path / "deep" / "runs.sqlite").reading().__enter__()


def test_a_full_disk_is_named_as_what_it_is(database: Database) -> None:
    """SQLite ends the transaction by itself, so that there is nothing left to roll back."""
    n_commands(database)
    with pytest.raises(RunStoreError, match="database or disk is full"), database.writing() as db:  # noqa: PT012
        db.execute("PRAGMA max_page_count = 1")
        for number in range(10_000):
            put(db, str(number))
    assert n_commands(database) == 0


def test_a_book_of_version_1_is_brought_up_to_date_and_keeps_its_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.add(tiny_preset(), name="old")
    with sqlite3.connect(store.database.file) as db:
        for later in ("private", "sweep", "unreported_starts"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {later}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    assert [(entry.id, entry.name, entry.private) for entry in store.entries()] == [(run, "old", 0)]
    store.change(run, private=1)
    assert store.entry(run).private


def test_a_book_of_version_3_is_brought_up_to_date_and_keeps_its_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.add(tiny_preset(), name="old")
    with sqlite3.connect(store.database.file) as db:
        db.execute("ALTER TABLE runs DROP COLUMN unreported_starts")
        db.execute("PRAGMA user_version = 3")
    db.close()
    assert [(entry.id, entry.state, entry.unreported_starts) for entry in store.entries()] == [(run, "queued", 0)]
