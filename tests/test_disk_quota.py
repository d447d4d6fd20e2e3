"""The disk quota: usage is measured only from time to time, and a write that exceeds the quota is rejected."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from xformer import disk_quota
from xformer.disk_quota import SPARE, DiskQuota, disk_used, megabytes, runs_folder, texts_folder
from xformer.errors import QuotaExceededError

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    for name, n in (("runs", 7), ("data", 11)):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "x").write_bytes(bytes(n))
    return tmp_path / "runs"


def test_runs_and_texts_count_together_and_each_file_once(runs: Path) -> None:
    assert (runs_folder(), texts_folder()) == (runs, runs.parent / "data")
    (runs / "gone").symlink_to(runs / "nowhere")
    assert DiskQuota().taken() == DiskQuota(runs).taken() == disk_used(runs.parent) == 18
    assert disk_used(runs.parent, runs) == disk_used(runs, runs.parent) == 18
    assert DiskQuota(runs.parent / "elsewhere").taken() == 11


def test_write_that_exceeds_the_quota_is_rejected(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskQuota(runs, 20).check(2, "This")
    monkeypatch.setenv("XFORMER_MAX_DISK", "much")  # invalid, so the default applies
    DiskQuota(runs).check(2, "This")
    monkeypatch.setenv("XFORMER_MAX_DISK", "19")
    with pytest.raises(QuotaExceededError):
        DiskQuota(runs).check(2, "This")
    with pytest.raises(QuotaExceededError, match=r"^This takes 0\.1 MB\. .* already take 0\.1 MB, and 0\.1 MB are"):
        DiskQuota(runs, 20).check(3, "This")
    with pytest.raises(QuotaExceededError, match=r"\(0\.1 MB of it reserved for waiting and active runs\), and"):
        DiskQuota(runs, 20).check(1, "This", promised=2)


def test_write_that_exceeds_the_free_disk_space_is_rejected(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, SPARE + 5_000_000))
    DiskQuota(runs / "not" / "there" / "yet").check(5_000_000, "This")
    with pytest.raises(QuotaExceededError, match=r"^This takes 6\.0 MB, and 5\.0 MB are free on the disk\.$"):
        DiskQuota(runs).check(6_000_000, "This")


def test_frequent_writes_do_not_measure_the_files_each_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, counted = [0.0], []

    def count(*folders: Path) -> int:
        counted.append(now[0])
        now[0] += 1.0  # measuring takes a second
        return 100 * len(counted)

    monkeypatch.setattr(disk_quota, "disk_used", count)
    monkeypatch.setattr(disk_quota.time, "monotonic", lambda: now[0])
    kept = DiskQuota(runs)
    assert kept.taken() == 100
    kept.wrote(5)
    now[0] = 50.0
    assert kept.taken() == 105
    now[0] = 52.0
    assert kept.taken() == 200  # measured again, which includes the written bytes
    assert counted == [0.0, 52.0]


def test_megabytes_formats_a_number_of_bytes() -> None:
    assert [megabytes(n) for n in (0, 60_000, 1_500_000, 999_000_000, 4_000_000_000)] == [
        "0.1 MB", "0.1 MB", "1.5 MB", "999.0 MB", "4.0 GB",
    ]  # fmt: skip
