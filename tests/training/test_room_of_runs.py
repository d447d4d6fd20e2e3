"""A run that comes to the limit of the disk: it says so, keeps what it has, and goes on when there is room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.at_work import PRESET, add, resume_here, train
from tests.training.test_commands import assert_same_run, undisturbed
from tests.training.tiny import tiny_preset
from xformer.disk_quota import Room, disk_used
from xformer.errors import QuotaExceededError
from xformer.training import snapshots
from xformer.training.limits import weights_on_disk
from xformer.training.run_store import RunStore
from xformer.training.snapshots import read_state, snapshot_steps

ONE = weights_on_disk(PRESET)
PLENTY = 2_000_000


@pytest.fixture
def most(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many bytes there may be besides those there are, for runs that begin or go on from now on."""
    texts = store.folder.parent / "texts"
    monkeypatch.setenv("XFORMER_DATA", str(texts))
    monkeypatch.setattr("xformer.disk_quota.LOOK_SHARE", 1e9)  # each look counts anew

    def allow(more: int | None) -> None:
        if more is None:
            monkeypatch.delenv("XFORMER_MAX_DISK")
        else:
            monkeypatch.setenv("XFORMER_MAX_DISK", str(disk_used(store.folder, texts) + more))

    return allow


def test_a_run_that_finds_no_room_while_it_trains(store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any) -> None:
    run = add(store)
    entry = train(store, run, monkeypatch, at={8: lambda: most(ONE // 2)})
    assert (entry.state, entry.step, entry.worker) == ("failed", 10, None)
    assert entry.message.startswith("A snapshot of step 10 takes 0.1 MB. Runs and texts on this server take")
    assert snapshot_steps(store.folder_of(run)) == [0]
    assert read_state(store.folder_of(run)).values["step"] == 10  # nothing that was learned is lost
    most(None)
    entry = resume_here(store, run, monkeypatch)
    assert (entry.state, entry.message) == ("finished", "")
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_run_that_has_no_room_to_begin(store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any) -> None:
    run = add(store)
    most(ONE // 2)
    entry = train(store, run, monkeypatch)
    assert (entry.state, entry.step) == ("failed", 0)
    assert "are allowed; delete some runs" in entry.message
    assert not list(store.folder_of(run).rglob("*.safetensors"))


def test_reports_take_room_too(store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any) -> None:
    run = add(store, tiny_preset(steps=20, log_every=1, snapshot_every=0))
    entry = train(store, run, monkeypatch, at={3: lambda: most(-10_000)})
    assert entry.state == "failed"
    assert entry.message.startswith(("A report of this run takes", "The state of this run takes"))


def test_a_run_at_its_end_is_not_lost_for_want_of_room(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any
) -> None:
    """The state goes, which took more than what comes in its place."""
    run = add(store, tiny_preset(steps=20, log_every=20, snapshot_every=16))
    assert train(store, run, monkeypatch, at={18: lambda: most(0)}).state == "finished"


def test_single_steps_do_not_pile_up(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store, tiny_preset(steps=60, log_every=30, snapshot_every=10))
    pauses = [*[lambda: store.send(run, "step")] * 25, lambda: store.send(run, "resume")]
    kept: list[list[int]] = []
    entry = train(
        store,
        run,
        monkeypatch,
        at={2: lambda: store.send(run, "pause"), 35: lambda: kept.append(snapshot_steps(store.folder_of(run)))},
        pauses=pauses,
    )
    assert entry.state == "finished"
    assert kept == [[0, 10, 20, 24, 25, 26, 27, 28, 30]]  # each tenth, and the last five of the others
    assert snapshots.MOST_ODD == 5
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_step_without_room_is_refused_and_the_run_stays_paused(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any
) -> None:
    run, seen = add(store), []

    def look_and_tell(kind: str, more: int | None) -> None:
        entry = store.entry(run)
        seen.append((entry.state, entry.step, entry.message[:17]))
        most(more)
        store.send(run, kind)

    pauses = [
        lambda: look_and_tell("step", PLENTY),
        lambda: look_and_tell("step", 0),
        lambda: look_and_tell("step", PLENTY),
        lambda: look_and_tell("resume", PLENTY),
    ]
    entry = train(store, run, monkeypatch, at={3: lambda: store.send(run, "pause")}, pauses=pauses)
    assert seen == [("paused", 4, ""), ("paused", 5, ""), ("paused", 5, "No step was made."), ("paused", 6, "")]
    assert (entry.state, entry.message) == ("finished", "")
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_pause_without_room_for_a_snapshot_says_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any
) -> None:
    run, seen = add(store), []

    def pause() -> None:
        most(0)
        store.send(run, "pause")

    def go_on() -> None:
        seen.append(store.entry(run))
        most(PLENTY)
        store.send(run, "resume")

    entry = train(store, run, monkeypatch, at={3: pause}, pauses=[go_on])
    assert (seen[0].state, seen[0].step) == ("paused", 4)
    assert seen[0].message.startswith("A snapshot of step 4 takes")
    assert (entry.state, entry.message) == ("finished", "")


def test_a_stop_without_room_stops_and_says_what_is_missing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, most: Any
) -> None:
    run = add(store)

    def stop() -> None:
        most(0)
        store.send(run, "stop")

    entry = train(store, run, monkeypatch, at={3: stop})
    assert (entry.state, entry.step) == ("stopped", 4)
    assert entry.message.startswith("No snapshot of this step was kept. A snapshot of step 4 takes")
    assert read_state(store.folder_of(run)).values["step"] == 4


def test_a_run_without_a_room_is_not_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever trains by themselves, into a folder of their own."""
    from xformer.training.loop import iter_train as train_here

    monkeypatch.setenv("XFORMER_MAX_DISK", "10")
    with pytest.raises(QuotaExceededError):
        Room(tmp_path).check(11, "This")
    assert list(train_here(tiny_preset(), out=tmp_path))[-1].done
