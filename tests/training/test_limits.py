"""How much may be asked: every limit says in one sentence what was asked, what is allowed, and what to do."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_queue import entry
from tests.training.tiny import tiny_preset
from xformer.errors import BookError, ConfigError
from xformer.training.limits import Limits, disk_needed, disk_used, megabytes, memory_needed
from xformer.training.loop import train
from xformer.training.snapshots import STATE

Usage = namedtuple("Usage", "total used free")


def test_what_is_within_the_limits_passes(tmp_path: Path) -> None:
    Limits().check(tiny_preset(), "ada", [entry(number) for number in range(7)], tmp_path / "runs")


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_one_persons_runs(tmp_path: Path, state: str) -> None:
    worker = None if state == "queued" else "w"
    mine = [entry(number, "ada", state=state, worker=worker) for number in range(2)]
    with pytest.raises(BookError, match="You have 2 runs waiting or in training, and 2 are allowed; stop one"):
        Limits(waiting=2).check(tiny_preset(), "ada", mine, tmp_path)
    Limits(waiting=2).check(tiny_preset(), "bob", mine, tmp_path)


@pytest.mark.parametrize("state", ["paused", "stopped", "interrupted", "failed", "finished"])
def test_runs_without_a_process_do_not_count(tmp_path: Path, state: str) -> None:
    Limits(waiting=1, waiting_in_all=1).check(tiny_preset(), "ada", [entry(1, "ada", state=state)], tmp_path)


def test_everybodys_runs_together(tmp_path: Path) -> None:
    entries = [entry(number, f"person {number}") for number in range(3)]
    with pytest.raises(BookError, match="3 runs are waiting on this server already; try again when"):
        Limits(waiting_in_all=3).check(tiny_preset(), "ada", entries, tmp_path)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"steps": 11}, "This run has 12 steps, and this server allows 11; choose fewer."),
        (
            {"parameters": 500},
            f"This run has {tiny_preset().model.n_parameters():,} parameters, and this server allows 500;",
        ),
        ({"cells": 19}, r"This run has 20 tokens per step \(batch size × longest input\), and this server allows 19"),
    ],
)
def test_what_a_run_asks_for_itself(tmp_path: Path, limit: dict[str, int], sentence: str) -> None:
    with pytest.raises(BookError, match=sentence):
        Limits(**limit).check(tiny_preset(), "ada", [], tmp_path)
    Limits(**{name: value + 10_000 for name, value in limit.items()}).check(tiny_preset(), "ada", [], tmp_path)


def test_the_folder_of_all_runs(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(bytes(3_000_000))
    with pytest.raises(
        BookError, match=r"The runs on this server take 3\.0 MB, this one would take .* MB more, and 3\.0 MB"
    ):
        Limits(disk=3_050_000).check(tiny_preset(), "ada", [], tmp_path)


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 2000, 2000))
    with pytest.raises(BookError, match=r"This run would take 0\.\d MB on the disk, and 0\.1 MB are free there\."):
        Limits().check(tiny_preset(), "ada", [], tmp_path)


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
def test_a_run_takes_no_more_disk_than_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    preset = tiny_preset(steps=30, model={"d_model": 32, "d_ff": 64}, **options)
    most = 0
    for _ in train(preset, out=tmp_path):
        most = max(most, disk_used(tmp_path))
    assert not (tmp_path / STATE).exists()
    most = max(most, disk_used(tmp_path))
    assert most <= disk_needed(preset) <= 3 * most + 100_000


def test_more_of_everything_needs_more_memory() -> None:
    usual = memory_needed(tiny_preset())
    for bigger in (tiny_preset(batch_size=8), tiny_preset(model={"d_model": 16}), tiny_preset(model={"n_layers": 3})):
        assert memory_needed(bigger) > usual > 4 * tiny_preset().model.n_parameters()


def test_disk_used_counts_all_files(tmp_path: Path) -> None:
    assert disk_used(tmp_path / "nothing") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(bytes(7))
    (tmp_path / "y").write_bytes(bytes(11))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert disk_used(tmp_path) == 18


def test_bytes_as_people_say_them() -> None:
    assert [megabytes(n) for n in (0, 60_000, 1_500_000, 999_000_000, 4_000_000_000)] == [
        "0.1 MB", "0.1 MB", "1.5 MB", "999.0 MB", "4.0 GB",
    ]  # fmt: skip
