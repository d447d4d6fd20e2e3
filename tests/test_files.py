"""A file is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xformer.files import write_atomically

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail(*_: Any, **__: Any) -> Any:
    raise NO_SPACE


class FullFile(io.FileIO):
    """Takes half of what it is given."""

    def write(self, data: Any) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise NO_SPACE


def test_the_content_is_written_and_the_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for content in (b"one", b"", b"\x00\xff" * 100_000):
        write_atomically(path, content)
        assert path.read_bytes() == content
        assert os.listdir(path.parent) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    write_atomically(str(path), b"as text")
    assert path.read_bytes() == b"as text"


@pytest.mark.parametrize("exists", [True, False], ids=["over an old file", "a new file"])
@pytest.mark.parametrize(
    ("name", "fake"),
    [
        pytest.param("fdopen", fail, id="opening"),
        pytest.param("fdopen", FullFile, id="writing"),
        pytest.param("fsync", fail, id="flushing"),
        pytest.param("chmod", fail, id="permissions"),
        pytest.param("replace", fail, id="renaming"),
    ],
)
def test_a_failure_is_raised_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fake: Callable[..., Any], exists: bool
) -> None:
    path = tmp_path / "file"
    if exists:
        path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fake)
        with pytest.raises(OSError, match="No space left on device"):
            write_atomically(path, b"new content")
    assert os.listdir(tmp_path) == (["file"] if exists else [])
    assert not exists or path.read_bytes() == b"old"
    write_atomically(path, b"new content")
    assert path.read_bytes() == b"new content"


def test_a_folder_that_cannot_be_flushed_is_told_and_the_file_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync = tmp_path / "file", os.fsync
    path.write_bytes(b"old")

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise NO_SPACE
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        mode = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(mode.st_mode) else f"file of {mode.st_size}")
        fsync(descriptor)

    def noted_replace(old: str, new: str) -> None:
        calls.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(tmp_path / "file", b"12345")
    assert calls == ["file of 5", "rename", "folder"]


def test_a_folder_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]


def test_failures_leak_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def n_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = n_open()
    for name in ("fsync", "chmod", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                write_atomically(tmp_path / "file", b"new")
    assert n_open() == before
