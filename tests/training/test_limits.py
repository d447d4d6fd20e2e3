"""How much may be asked: every limit says in one sentence what was asked, what is allowed, and what to do."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.at_work import PRESET, add, resume_here, train
from tests.training.test_commands import assert_same_run, undisturbed
from tests.training.test_dispatch import entry
from tests.training.tiny import tiny_preset
from xformer.counting import n_parameters
from xformer.disk_quota import SPARE, Room, disk_used
from xformer.errors import ConfigError, QuotaExceededError, RunStoreError
from xformer.paths import STATE, snapshot_steps
from xformer.presets import PRESETS, Preset
from xformer.training import limits
from xformer.training.limits import (
    PROCESS,
    Limits,
    disk_needed,
    memory_needed,
    metrics_needed,
    promised,
    weights_on_disk,
)
from xformer.training.loop import iter_train, read_state
from xformer.training.run_store import RunStore

Usage = namedtuple("Usage", "total used free")


def test_what_is_within_the_limits_passes(tmp_path: Path) -> None:
    Limits().check_queue(tiny_preset(), "ada", [entry(number) for number in range(7)], tmp_path / "runs")


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_one_persons_runs(tmp_path: Path, state: str) -> None:
    worker = None if state == "queued" else "w"
    mine = [entry(number, "ada", state=state, worker=worker) for number in range(2)]
    with pytest.raises(RunStoreError, match="You have 2 runs waiting or in training, and 2 are allowed; stop one"):
        Limits(waiting=2).check_queue(tiny_preset(), "ada", mine, tmp_path)
    Limits(waiting=2).check_queue(tiny_preset(), "bob", mine, tmp_path)


@pytest.mark.parametrize("state", ["paused", "stopped", "interrupted", "failed", "finished"])
def test_runs_without_a_process_do_not_count(tmp_path: Path, state: str) -> None:
    Limits(waiting=1, waiting_in_all=1).check_queue(tiny_preset(), "ada", [entry(1, "ada", state=state)], tmp_path)


def test_everybodys_runs_together(tmp_path: Path) -> None:
    entries = [entry(number, f"person {number}") for number in range(3)]
    with pytest.raises(RunStoreError, match="3 runs are waiting on this server already; try again when"):
        Limits(waiting_in_all=3).check_queue(tiny_preset(), "ada", entries, tmp_path)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"steps": 11}, "This run has 12 steps, and this server allows 11; choose fewer."),
        (
            {"parameters": 500},
            f"This run has {n_parameters(tiny_preset().model):,} parameters, and this server allows 500;",
        ),
        ({"cells": 19}, r"This run has 20 tokens per step \(batch size × longest input\), and this server allows 19"),
    ],
)
def test_what_a_run_asks_for_itself(limit: dict[str, int], sentence: str) -> None:
    with pytest.raises(RunStoreError, match=sentence):
        Limits(**limit).check_size(tiny_preset())
    Limits(**{name: value + 10_000 for name, value in limit.items()}).check_size(tiny_preset())


def test_the_folder_of_all_runs(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(bytes(3_000_000))
    with pytest.raises(
        RunStoreError,
        match=r"This run takes 0\.\d MB\. Runs and texts on this server take 3\.0 MB already, and 3\.0 MB are",
    ):
        Limits(disk=3_050_000).check_queue(tiny_preset(), "ada", [], tmp_path)


def test_what_others_have_yet_to_write_is_taken_already(tmp_path: Path) -> None:
    preset = tiny_preset(steps=1000, snapshot_every=1)
    waiting = [entry(number, **settings_of(preset)) for number in range(3)]
    one = disk_needed(preset)
    assert promised(waiting, tmp_path) == 3 * one
    Limits(disk=4 * one + 1000).check_queue(preset, "ada", waiting, tmp_path)
    with pytest.raises(QuotaExceededError, match="of it runs that wait or are trained"):
        Limits(disk=4 * one - 1000).check_queue(preset, "ada", waiting, tmp_path)
    (tmp_path / waiting[0].id).mkdir()
    (tmp_path / waiting[0].id / "snapshot").write_bytes(bytes(1000))  # what is there is counted as a file, once
    assert promised(waiting, tmp_path) == 3 * one - 1000
    assert promised([entry(1, state="finished", **settings_of(preset))], tmp_path) == 0


def settings_of(preset: Preset) -> dict[str, Any]:
    return {"model": preset.model.to_json(), "task": preset.task.to_json(), "train": preset.train.to_json()}


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - SPARE - 2000, SPARE + 2000))
    with pytest.raises(RunStoreError, match=r"This run takes 0\.\d MB, and 0\.1 MB are free on the disk\."):
        Limits().check_queue(tiny_preset(), "ada", [], tmp_path)


LARGE: dict[str, Any] = {"model": {"max_len": 4097}, "task": {"min_len": 2000, "max_len": 2000}, "batch_size": 2000}


def test_a_run_of_very_much_memory_is_refused_before_it_is_made() -> None:
    """All other limits let it pass."""
    preset = tiny_preset(**LARGE)
    with pytest.raises(
        RunStoreError, match=r"This run takes about [\d.]+ GB of memory, and this server allows 4\.3 GB; choose"
    ):
        Limits().check_size(preset)
    with pytest.raises(RunStoreError, match=r"and this server allows 314\.6 MB; choose"):
        Limits(run_memory=300).check_size(tiny_preset(held_out=60_000))
    Limits(run_memory=300).check_size(tiny_preset())


def test_the_memory_of_the_machine_is_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "machine_bytes", lambda: 10**8)
    with pytest.raises(RunStoreError, match=r"and this server allows 100\.0 MB"):
        Limits().check_size(tiny_preset())


def test_a_run_of_this_process_needs_the_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda: 10**8)
    with pytest.raises(
        ConfigError, match=r"This run takes about 2\d\d\.\d MB of memory, and 100\.0 MB are free on this machine"
    ):
        next(iter_train(tiny_preset(), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    limits.check_memory(tiny_preset(), "cuda")  # of whose memory nothing is known


def test_reports_that_no_state_could_hold_are_refused() -> None:
    many = tiny_preset(steps=200_000, log_every=1, model={"n_layers": 10, "n_heads": 8, "d_head": 1, "d_value": 1})
    with pytest.raises(
        RunStoreError, match=r"The reports of this run take about \d+\.\d MB, and 50\.0 MB can be kept; report more"
    ):
        Limits().check_size(many)
    Limits().check_size(replace(many, train=many.train.replace(log_every=100)))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_within_the_usual_limits(name: str) -> None:
    Limits().check_size(PRESETS[name])


def test_limits_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits()
    changed = Limits.from_environment(
        {"XFORMER_MAX_WAITING": "2", "XFORMER_MAX_DISK": "1000", "XFORMER_MAX_OTHER": "x"}
    )
    assert changed == Limits(waiting=2, disk=1000)


@pytest.mark.parametrize("text", ["", "two", "-1", "1e3", "2.5", "٣"])
def test_a_limit_that_is_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match=r"XFORMER_MAX_STEPS must be a whole number, got .*; for example 200000"):
        Limits.from_environment({"XFORMER_MAX_STEPS": text})


@pytest.mark.parametrize("options", [{}, {"snapshot_every": 1}, {"snapshot_every": 0}, {"log_every": 1}])
def test_a_run_takes_no_more_disk_than_was_said(tmp_path: Path, options: dict[str, Any]) -> None:
    preset = tiny_preset(steps=30, model={"d_model": 32, "d_ff": 64}, **options)
    most = 0
    for _ in iter_train(preset, out=tmp_path):
        most = max(most, disk_used(tmp_path))
    assert not (tmp_path / STATE).exists()
    most = max(most, disk_used(tmp_path))
    assert most <= disk_needed(preset) <= 3 * most + 100_000


LONG = {"min_len": 150, "max_len": 200}

WINDOWS = {"min_len": 1000, "max_len": 1000}

# MB above those of a process with torch imported, at the peak of two reports with snapshots, on one core of a Xeon.
MEASURED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    ("reverse", {"d_ff": 8192, "n_layers": 6}, {}, {}, 233),
    ("reverse", {}, {}, {"held_out": 16384}, 872),
    ("reverse", {}, {}, {"batch_size": 2048}, 532),
    ("reverse", {}, {}, {"batch_size": 16384}, 3915),
    ("reverse-seq2seq", {}, {}, {"batch_size": 4096}, 546),
    ("reverse-decoder", {}, {}, {"batch_size": 4096}, 987),
    ("reverse", {"dropout": 0.1}, {}, {"batch_size": 2048}, 936),
    ("reverse", {"n_heads": 64, "d_head": 8, "d_value": 8}, {}, {"batch_size": 512}, 459),
    ("reverse", {"max_len": 400}, LONG, {"batch_size": 64}, 450),
    ("reverse", {"max_len": 400, "dropout": 0.1}, LONG, {"batch_size": 64}, 1863),
    ("reverse", {"max_len": 400, "positions": "alibi"}, LONG, {"batch_size": 64}, 1201),
    ("reverse-seq2seq", {"max_len": 400}, LONG, {"batch_size": 64}, 445),
    ("reverse-decoder", {"max_len": 900}, LONG, {"batch_size": 64}, 939),
    ("characters", {"n_heads": 32, "d_head": 8, "d_value": 8, "n_layers": 8}, {}, {}, 213),
    ("characters", {}, {}, {"batch_size": 256}, 877),
    (
        "characters",
        {"max_len": 1001, "n_heads": 64, "d_head": 8, "d_value": 8},
        WINDOWS,
        {"batch_size": 4, "held_out": 8},
        423,
    ),
    ("digits", {}, {}, {"batch_size": 2048}, 671),
    ("sort", {}, {}, {"batch_size": 2048}, 404),
]


def changed(name: str, model: dict[str, Any], task: dict[str, Any], train: dict[str, Any]) -> Preset:
    preset = PRESETS[name]
    changes = preset.model.replace(**model), preset.task.replace(**task), preset.train.replace(**train)
    return replace(preset, model=changes[0], task=changes[1], train=changes[2])


@pytest.mark.parametrize(("name", "model", "task", "train", "measured"), MEASURED)
def test_the_memory_that_is_told_is_near_what_was_measured(
    name: str, model: dict[str, Any], task: dict[str, Any], train: dict[str, Any], measured: int
) -> None:
    estimate = (memory_needed(changed(name, model, task, train)) - PROCESS) / 1e6
    assert 0.6 * measured < estimate < 1.5 * measured + 60


def test_a_report_has_a_number_for_each_head() -> None:
    usual = tiny_preset(steps=1000, log_every=10)
    assert (
        100 * 400 < metrics_needed(usual) < metrics_needed(tiny_preset(steps=1000, log_every=10, model={"n_layers": 3}))
    )
    assert metrics_needed(tiny_preset(steps=1000, log_every=100)) == metrics_needed(usual) / 10


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
    """Training from a script, into a folder of its own."""
    from xformer.training.loop import iter_train as train_here

    monkeypatch.setenv("XFORMER_MAX_DISK", "10")
    with pytest.raises(QuotaExceededError):
        Room(tmp_path).check(11, "This")
    assert list(train_here(tiny_preset(), out=tmp_path))[-1].done
