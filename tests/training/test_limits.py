"""Limits and estimates. Every message names the requested value, the limit and a remedy in one sentence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.training.at_work import PRESET, LocalRun, NewRun, waiting
from tests.training.tiny import tiny_preset
from xformer.counting import n_parameters
from xformer.disk_quota import disk_used
from xformer.errors import ConfigError, QuotaExceededError, RunStoreError
from xformer.files import STATE
from xformer.presets import PRESETS, Preset
from xformer.training import limits
from xformer.training.limits import PROCESS, Limits, disk_needed, memory_needed, reserved_bytes, weights_on_disk
from xformer.training.loop import iter_train
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore


def test_number_of_runs_is_limited_per_owner_and_in_total(tmp_path: Path) -> None:
    def check(owner: str, entries: list[RunRecord], **limits: int) -> None:
        Limits(**limits).check_queue(tiny_preset(), owner, entries, tmp_path)

    for state in ("queued", "running", "paused"):
        mine = [waiting(number, "ada", state=state, worker=None if state == "queued" else "w") for number in range(2)]
        with pytest.raises(RunStoreError, match="You have 2 runs waiting or in training, and 2 are allowed; stop one"):
            check("ada", mine, waiting=2)
        check("bob", mine, waiting=2)
    for state in ("paused", "stopped", "interrupted", "failed", "finished"):  # runs without a process do not count
        check("ada", [waiting(1, "ada", state=state)], waiting=1, waiting_in_all=1)
    with pytest.raises(RunStoreError, match="3 runs are already waiting on this server; try again when"):
        check("ada", [waiting(number, f"person {number}") for number in range(3)], waiting_in_all=3)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"steps": 11}, "This run has 12 steps, and this server allows 11; choose fewer."),
        ({"parameters": 500}, f"has {n_parameters(tiny_preset().model):,} parameters, and this server allows 500;"),
        ({"cells": 19}, r"This run has 20 tokens per step \(batch size × longest input\), and this server allows 19"),
    ],
)
def test_size_of_a_run_is_limited(limit: dict[str, int], sentence: str) -> None:
    with pytest.raises(RunStoreError, match=sentence):
        Limits(**limit).check_size(tiny_preset())
    Limits(**{name: value + 10_000 for name, value in limit.items()}).check_size(tiny_preset())


def test_disk_space_reserved_by_other_runs_counts(tmp_path: Path) -> None:
    preset = tiny_preset(steps=1000, snapshot_every=1)
    others = [waiting(number, "ada", **settings_of(preset)) for number in range(3)]
    one = disk_needed(preset)
    assert reserved_bytes(others, tmp_path) == 3 * one
    Limits(disk=4 * one + 1000).check_queue(preset, "ada", others, tmp_path)
    with pytest.raises(QuotaExceededError, match="of it reserved for waiting and active runs"):
        Limits(disk=4 * one - 1000).check_queue(preset, "ada", others, tmp_path)
    (tmp_path / others[0].id).mkdir()
    (tmp_path / others[0].id / "snapshot").write_bytes(bytes(1000))  # existing files are not counted twice
    assert reserved_bytes(others, tmp_path) == 3 * one - 1000
    assert reserved_bytes([waiting(1, "ada", state="finished", **settings_of(preset))], tmp_path) == 0


def settings_of(preset: Preset) -> dict[str, Any]:
    return {"model": preset.model.to_json(), "task": preset.task.to_json(), "train": preset.train.to_json()}


def test_run_that_needs_too_much_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is within all other limits. The memory of the machine is also a limit."""
    preset = tiny_preset(model={"max_len": 4097}, task={"min_len": 2000, "max_len": 2000}, batch_size=2000)
    with pytest.raises(RunStoreError, match=r"needs about [\d.]+ GB of memory, and this server allows 4\.3 GB; choose"):
        Limits().check_size(preset)
    with pytest.raises(RunStoreError, match=r"and this server allows 314\.6 MB; choose"):
        Limits(run_memory=300).check_size(tiny_preset(held_out=60_000))
    Limits(run_memory=300).check_size(tiny_preset())
    monkeypatch.setattr(limits, "machine_bytes", lambda: 10**8)
    with pytest.raises(RunStoreError, match=r"and this server allows 100\.0 MB"):
        Limits().check_size(tiny_preset())


def test_training_in_this_process_needs_enough_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda: 10**8)
    with pytest.raises(ConfigError, match=r"about 2\d\d\.\d MB of memory, and 100\.0 MB are free on this machine"):
        next(iter_train(tiny_preset(), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    limits.check_memory(tiny_preset(), "cuda")  # GPU memory is not checked


def test_run_with_too_many_reports_is_rejected() -> None:
    many = tiny_preset(steps=200_000, log_every=1, model={"n_layers": 10, "n_heads": 8, "d_head": 1, "d_value": 1})
    with pytest.raises(RunStoreError, match=r"The reports of this run need about \d+\.\d MB, and 50\.0 MB are allowed"):
        Limits().check_size(many)
    Limits().check_size(replace(many, train=many.train.replace(log_every=100)))


def test_every_preset_is_within_the_default_limits() -> None:
    for preset in PRESETS.values():
        Limits().check_size(preset)


def test_limits_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits()
    changes = {"XFORMER_MAX_WAITING": "2", "XFORMER_MAX_DISK": "1000", "XFORMER_MAX_OTHER": "x"}
    assert Limits.from_environment(changes) == Limits(waiting=2, disk=1000)
    for text in ("", "-1", "2.5", "٣"):
        with pytest.raises(ConfigError, match=r"XFORMER_MAX_STEPS must be a whole number, got .*; for example 200000"):
            Limits.from_environment({"XFORMER_MAX_STEPS": text})


@pytest.mark.parametrize("options", [{"snapshot_every": 1}, {"snapshot_every": 0, "log_every": 1}])
def test_run_uses_no_more_disk_than_estimated(tmp_path: Path, options: dict[str, Any]) -> None:
    preset = tiny_preset(steps=30, model={"d_model": 32, "d_ff": 64}, **options)
    most = max(disk_used(tmp_path) for _ in iter_train(preset, out=tmp_path))
    assert not (tmp_path / STATE).exists()
    most = max(most, disk_used(tmp_path))
    assert most <= disk_needed(preset) <= 3 * most + 100_000


LONG, WINDOWS = {"min_len": 150, "max_len": 200}, {"min_len": 1000, "max_len": 1000}
WIDE = {"n_heads": 64, "d_head": 8, "d_value": 8}

# Peak memory of two reports with snapshots, in MB above a process with torch imported, measured on one core of a Xeon.
MEASURED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    ("reverse", {"d_ff": 8192, "n_layers": 6}, {}, {}, 233),
    ("reverse", {}, {}, {"batch_size": 16384}, 3915),
    ("reverse", {"dropout": 0.1}, {}, {"batch_size": 2048}, 936),
    ("reverse", {"max_len": 400, "dropout": 0.1}, LONG, {"batch_size": 64}, 1863),
    ("reverse-seq2seq", {"max_len": 400}, LONG, {"batch_size": 64}, 445),
    ("characters", WIDE | {"max_len": 1001}, WINDOWS, {"batch_size": 4, "held_out": 8}, 423),
    ("digits", {}, {}, {"batch_size": 2048}, 671),
]


@pytest.mark.parametrize(("name", "model", "task", "train", "measured"), MEASURED)
def test_estimated_memory_is_close_to_the_measured_memory(
    name: str, model: dict[str, Any], task: dict[str, Any], train: dict[str, Any], measured: int
) -> None:
    preset = PRESETS[name]
    parts = {"model": preset.model.replace(**model), "task": preset.task.replace(**task)}
    estimate = (memory_needed(replace(preset, **parts, train=preset.train.replace(**train))) - PROCESS) / 1e6
    assert 0.6 * measured < estimate < 1.5 * measured + 60


ONE = weights_on_disk(PRESET)

PLENTY = 2_000_000


@pytest.fixture
def allow_disk(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets the disk quota to the current usage plus a number of bytes."""
    texts = store.folder.parent / "texts"
    monkeypatch.setenv("XFORMER_DATA", str(texts))
    monkeypatch.setattr("xformer.disk_quota.LOOK_SHARE", 1e9)  # measure the usage at every check

    def allow_disk(more: int) -> None:
        monkeypatch.setenv("XFORMER_MAX_DISK", str(disk_used(store.folder, texts) + more))

    return allow_disk


def test_run_that_exceeds_the_disk_quota_fails_and_can_be_resumed(run: LocalRun, allow_disk: Any) -> None:
    entry = run.train({8: lambda: allow_disk(ONE // 2)})
    assert (entry.state, entry.step, entry.worker) == ("failed", 10, None)
    assert entry.message.startswith("A snapshot of step 10 takes 0.1 MB. Runs and texts on this server already take")
    assert (run.snapshots, run.saved_step) == ([0], 10)  # no training is lost
    allow_disk(PLENTY)
    assert run.assert_goes_on().message == ""


def test_finished_run_is_saved_even_if_the_disk_quota_is_used_up(new_run: NewRun, allow_disk: Any) -> None:
    """The final files replace the state, which is larger."""
    run = new_run(tiny_preset(steps=20, log_every=20, snapshot_every=16))
    assert run.train({18: lambda: allow_disk(0)}).state == "finished"


def test_only_the_last_snapshots_of_single_steps_are_kept(new_run: NewRun) -> None:
    run, kept = new_run(tiny_preset(steps=40, log_every=30, snapshot_every=10)), []
    run.train({2: "pause", 35: lambda: kept.extend(run.snapshots)}, ["step"] * 25 + ["resume"])
    assert kept == [0, 10, 20, 24, 25, 26, 27, 28, 30]  # every tenth, and the last five of the others
    run.assert_undisturbed()


def test_pause_or_stop_without_quota_for_a_snapshot_has_a_message(run: LocalRun, allow_disk: Any) -> None:
    def without_quota(command: str) -> None:
        allow_disk(0)
        run.happens(command)

    def resume() -> None:
        seen.append(run.entry)
        allow_disk(PLENTY)
        run.happens("resume")

    seen: list[RunRecord] = []
    entry = run.train({3: partial(without_quota, "pause"), 8: partial(without_quota, "stop")}, [resume])
    assert (seen[0].state, seen[0].step) == ("paused", 4)
    assert seen[0].message.startswith("A snapshot of step 4 takes")
    assert (entry.state, entry.step, run.saved_step) == ("stopped", 9, 9)
    assert entry.message.startswith("No snapshot of this step was saved. A snapshot of step 9 takes")
    allow_disk(PLENTY)
    assert run.assert_goes_on().message == ""
