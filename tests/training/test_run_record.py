"""A damaged run store: damaged runs are reported as such, and all other runs are read as before."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.test_damaged_books import trouble_with
from tests.training.test_run_store import edit
from tests.training.tiny import tiny_preset
from xformer.training import jobs
from xformer.training.executors import process as processes
from xformer.training.run_record import DAMAGED, RunRecord, metrics_row
from xformer.training.run_store import RunStore, exact_match, latest_rows
from xformer.training.tables import differing, overview

GARBLED = ["banana", b"\xff\x00", -1, 1.5, 10**18, math.inf, "{", "[1]", "\x1b[2J"]


@pytest.fixture
def sound(store: RunStore) -> str:
    """An undamaged run, the oldest in the store."""
    run = store.add(tiny_preset(), name="sound", state="finished", figures={"exact_match": 0.5})
    store.put_rows(run, [{"step": 4, "loss": 0.5, "held_out_exact_match": 0.25}])
    return run


OTHERS = ("number", "id", "deleted", "private", "sweep")  # damaged ids and sweeps have separate tests
COLUMNS = [name for name in RunRecord.model_fields if name not in OTHERS]


def test_garbled_cells_hide_no_other_run(store: RunStore, sound: str) -> None:
    garbled = {}
    for number, column in enumerate(COLUMNS):
        for value in GARBLED[number % 3 :: 3]:
            run = store.add(tiny_preset(), name="hurt", state="stopped")
            edit(store, run, **{column: value})
            garbled[run] = column
    found = {entry.id: entry for entry in store.entries()}
    assert list(found) == [*reversed(garbled), sound]
    assert found[sound].state == "finished"
    for run, column in garbled.items():
        hurt = found[run]
        if column in ("model", "task", "train", "state"):
            assert hurt.state == DAMAGED
            assert f"damaged ({column}" in hurt.message
        assert all(math.isfinite(number) for number in (hurt.step, hurt.seconds, hurt.turn, hurt.created))
    assert list(overview(store.entries(), latest_rows(store)).index) == list(found)
    damaged = [entry for entry in store.entries() if entry.state == DAMAGED]
    assert differing([*damaged, found[sound]]).empty, "one run alone differs from none"
    jobs.queue_order(store.entries())
    jobs.reconcile(store)
    for run in garbled:
        jobs.stop(store, run)
        if not store.entry(run).is_active:
            store.delete(run)
    assert sound in [entry.id for entry in store.entries()]
    shown = [["show", run] for run in [*garbled][::6]]
    assert trouble_with(store.folder, [["list"], *shown]) == []


def test_damaged_run_is_not_started_and_not_shown_as_active(store: RunStore, sound: str) -> None:
    run = store.add(tiny_preset())
    edit(store, run, train="{}", worker="other", state="running")
    jobs.reconcile(store)
    entry = store.entry(run)
    assert (entry.state, entry.is_active, entry.train) == (DAMAGED, False, {})
    assert entry.message.endswith("is damaged (train). TrainConfig needs the field 'steps', which is missing.")


@pytest.mark.parametrize("name", ["..", "/etc", "x" * 200])
def test_damaged_id_cannot_name_another_folder(store: RunStore, sound: str, name: str) -> None:
    """Otherwise emptying the bin would remove the folder of all runs, or a folder elsewhere."""
    store.folder_of(sound).mkdir()
    edit(store, store.add(tiny_preset(), state="stopped"), id=name)
    [hurt] = [entry for entry in store.entries() if entry.id != sound]
    assert hurt.id == f"number-{hurt.number}"
    assert store.entry(hurt.id) == hurt
    store.delete(hurt.id)
    jobs.empty_bin(store, older_than=-60)
    assert store.entries(deleted=True) == []
    assert store.folder_of(sound).is_dir()
    assert [entry.id for entry in store.entries()] == [sound]


def test_row_of_invalid_json_hides_no_other_row(store: RunStore, sound: str) -> None:
    other = store.add(tiny_preset())
    store.put_rows(other, [{"step": step, "loss": 1.0, "held_out_exact_match": step / 10} for step in (1, 2, 3)])
    with store.database.writing() as db:
        db.execute("UPDATE metrics SET row = '{' WHERE run = ? AND step = 3", (other,))
    latest = latest_rows(store)
    assert (latest[other]["step"], latest[sound]["step"]) == (2, 4)
    assert exact_match(store.entry(other), latest[other]) == 0.2
    assert [row["step"] for row in store.rows(other)] == [1, 2]
    assert (store.n_rows(other), store.n_rows(sound)) == (3, 1)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[]", None),
        ('{"step": 4}', None),
        ('{"step": "3"}', None),
        ('{"step": 3, "loss": "low", "note": 7, "scores": {"a": [null]}, "best_head_score": true}', {"step": 3}),
        ('{"step": 3, "loss": NaN, "scores": {"a": [0.5]}}', {"step": 3, "loss": math.nan, "scores": {"a": [0.5]}}),
    ],
)
def test_metrics_row_keeps_only_valid_values(text: str, kept: dict[str, Any] | None) -> None:
    found = metrics_row(3, text)
    assert json.dumps(found) == json.dumps(kept)


@pytest.mark.parametrize("hurts", ["folder", "worker.lock", "the lock of a dead run"])
def test_unusable_folder_blocks_no_other_run(store: RunStore, hurts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(processes, "spawn", lambda store, run, *_: started.append(run))
    monkeypatch.setattr(jobs, "devices", lambda: ["cpu"])
    is_dead = hurts == "the lock of a dead run"
    hurt, other = store.add(tiny_preset(), state="running" if is_dead else "queued"), store.add(tiny_preset())
    if is_dead:
        edit(store, hurt, worker="w", device="cuda:0")
    if hurts == "folder":
        store.folder_of(hurt).write_text("")
    else:
        (store.folder_of(hurt) / ("worker.lock" if is_dead else hurts)).mkdir(parents=True)
    jobs.reconcile(store)
    assert started == [other]
    if not is_dead:
        assert store.entry(hurt).state == "stopped"
        assert store.entry(hurt).message.startswith("Its folder cannot be used: ")
