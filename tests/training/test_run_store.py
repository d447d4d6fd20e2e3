"""The run store: state transitions, stored values, and transactions."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.training.at_work import at_once
from tests.training.tiny import tiny_preset
from xformer.errors import RunStoreError
from xformer.training.run_store import Database, RunStore, entry_of, move, one_line, set_columns

PRESET = tiny_preset(lr_changes=((3, 0.5),))


def edit(store: RunStore, run: str, **cells: Any) -> None:
    """Set cells directly, without any validation."""
    with store.database.writing() as db:
        set_columns(db, run, **cells)


def test_reading_a_missing_run_store_creates_no_files(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "nowhere")
    assert store.entries() == store.entries(deleted=True) == []
    assert not store.folder.exists()


def test_added_run_is_read_back_with_its_values(store: RunStore) -> None:
    run = store.add(PRESET, owner="ada", name=" first\n try ", device="cpu", parent="a@3", figures={"exact_match": 1.0})
    entry = store.entry(run)
    assert vars(entry).items() >= {
        "id": run, "owner": "ada", "name": "first try", "wanted": "cpu", "parent": "a@3", "figures": {"exact_match": 1.0},
        "state": "queued", "worker": None, "step": 0, "tags": (), "live": {}, "message": "",
    }.items()  # fmt: skip
    assert entry.settings() == PRESET
    assert not entry.is_active
    assert store.entry(store.add(PRESET)).name == PRESET.title


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [("queued", "running", True), ("paused", "stopped", True), ("failed", "queued", True),
     ("finished", "queued", False), ("stopped", "running", False), ("queued", "finished", False)],
)  # fmt: skip
def test_only_allowed_state_transitions_are_made(store: RunStore, before: str, after: str, is_allowed: bool) -> None:
    run = store.add(PRESET, name="mine", state=before)
    words = f"The run “mine” is {before}, so it cannot become {after}"
    with nullcontext() if is_allowed else pytest.raises(RunStoreError, match=words), store.database.writing() as db:
        move(db, entry_of(db, run), after, message="why")
    entry = store.entry(run)
    assert (entry.state, entry.message) == ((after, "why") if is_allowed else (before, ""))


def test_unknown_run_is_an_error(store: RunStore) -> None:
    send, rename = (lambda run: store.send(run, "stop")), (lambda run: store.rename(run, "x"))
    for call in (store.entry, store.delete, store.undelete, send, rename):
        with pytest.raises(RunStoreError, match="There is no run 'nonsense'; it may have been deleted"):
            call("nonsense")


def test_commands_are_kept_in_order(store: RunStore) -> None:
    run = store.add(PRESET, name="mine", state="running")
    with pytest.raises(RunStoreError, match="The run “mine” is running, so it cannot pause"):  # it has no worker
        store.send(run, "pause")
    edit(store, run, worker="w")
    sent = [("rate", 0.25), ("pause", None), ("step", None), ("stop", None)]
    for kind, value in sent:
        store.send(run, kind, value)
    with pytest.raises(RunStoreError, match="A command must be one of pause, resume, step, stop, rate, got 'explode'"):
        store.send(run, "explode")
    with store.database.reading() as db:
        assert [(row["kind"], row["value"]) for row in db.execute("SELECT * FROM commands ORDER BY number")] == sent


def test_rows_returns_the_metrics_after_a_step(store: RunStore) -> None:
    run, other = store.add(PRESET), store.add(PRESET)
    store.put_rows(run, [{"step": step, "loss": 1 / step} for step in (5, 10, 20, 15)])
    store.put_rows(other, [{"step": 7}])
    assert [row["step"] for row in store.rows(run)] == [5, 10, 15, 20]
    assert [row["step"] for row in store.rows(run, after=10)] == [15, 20]
    store.put_rows(run, [{"step": 10, "loss": 7.0}])  # the same step again, after a resume
    assert store.rows(run, after=5)[0] == {"step": 10, "loss": 7.0}


def test_notebook_repr_shows_the_runs_and_escapes_their_markup(store: RunStore) -> None:
    store.add(PRESET, name="<b>mine</b>")
    for html in (store._repr_html_(), store.entries()[0]._repr_html_()):
        assert "&lt;b&gt;mine&lt;/b&gt;" in html
        assert "queued" in html
    assert f"0 of {PRESET.train.steps}" in store.entries()[0]._repr_html_()


def test_names_and_tags_are_cleaned_and_stored(store: RunStore) -> None:
    run = store.add(PRESET)
    store.rename(run, "  a\x00 name\u202e of\n two lines \ud800 ")
    assert store.entry(run).name == "a name of two lines ?"
    with pytest.raises(RunStoreError, match="A run needs a name with at least one letter"):
        store.rename(run, " \n\t")
    store.tag(run, ["one", " two ", "one", "", *map(str, range(20))])
    assert store.entry(run).tags == ("one", "two", *map(str, range(10)))
    assert len(one_line("x" * 500)) == 80
    assert store.entry(store.add(PRESET, name="\ud800")).name == "?"


def test_deleted_run_can_be_restored(store: RunStore) -> None:
    run = store.add(PRESET)
    store.delete(run)
    assert store.entries() == []
    # Restored, it does not start by itself.
    assert [entry.state for entry in store.entries(deleted=True)] == ["stopped"]
    store.undelete(run)
    assert [entry.id for entry in store.entries()] == [run]
    edit(store, run, worker="w", state="running")
    with pytest.raises(RunStoreError, match="is running; stop it before you delete it"):
        store.delete(run)


def put(db: sqlite3.Connection, run: str = "a") -> None:
    db.execute("INSERT INTO commands (run, kind, sent) VALUES (?, 'stop', 0)", (run,))


def n_commands(database: Database) -> int:
    with database.reading() as db:
        return db.execute("SELECT count(*) FROM commands").fetchone()[0]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "deep" / "runs.sqlite")


def test_writers_wait_for_each_other(database: Database) -> None:
    def add_some() -> None:
        for _ in range(6):
            with database.writing() as db:
                count = db.execute("SELECT count(*) FROM commands").fetchone()[0]
                time.sleep(0.002)  # two concurrent transactions would both see the same count
                put(db, str(count))

    assert at_once(4, add_some) == [None] * 4
    with database.reading() as db:
        assert [int(row["run"]) for row in db.execute("SELECT run FROM commands ORDER BY number")] == list(range(24))


def test_opening_a_run_store_waits_while_another_process_creates_it(tmp_path: Path) -> None:
    """While another connection writes, SQLite rejects enabling the write-ahead log without honouring its timeout."""
    other = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, other.rollback)
    timer.start()
    assert n_commands(Database(tmp_path / "runs.sqlite")) == 0
    timer.join()
    other.close()


@pytest.mark.parametrize("version", [1, 7])
def test_run_store_of_another_version_is_not_changed(version: int, database: Database) -> None:
    database.file.parent.mkdir()
    with sqlite3.connect(database.file) as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = database.file.read_bytes()
    for access in (database.reading, database.writing):
        with pytest.raises(
            RunStoreError, match=rf"\) has version {version}, and this program reads version 5; move it away"
        ):
            access().__enter__()
    assert database.file.read_bytes() == before


def test_file_that_is_not_a_run_store_is_rejected_in_one_sentence(database: Database) -> None:
    database.file.parent.mkdir()
    for content in (b"no database at all, but long enough to be looked at" * 20, b"SQLite format 3\0" * 99):
        database.file.write_bytes(content)
        with pytest.raises(RunStoreError, match=r"^The run store \(runs\.sqlite\) cannot be used: .*\.$"):
            database.reading().__enter__()
        assert database.file.read_bytes() == content


def test_full_disk_is_reported_as_such(database: Database) -> None:
    """SQLite rolls the transaction back itself, so a further rollback would fail and hide the cause."""
    n_commands(database)
    with pytest.raises(RunStoreError, match="database or disk is full"), database.writing() as db:  # noqa: PT012
        db.execute("PRAGMA max_page_count = 1")
        for number in range(10_000):
            put(db, str(number))
    assert n_commands(database) == 0
