"""Atomic writes, which leave either the old or the new file, and the validation of safetensors headers."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.at_work import failing_with
from xformer.errors import CheckpointError
from xformer.files import MAX_HEADER, MAX_TENSORS, TensorEntry, parse_header, strict_json, write_atomically

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile(io.FileIO):
    """Writes only half of the data and then raises, as on a full disk."""

    def write(self, data: Any) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise NO_SPACE


def test_content_is_written_and_the_folder_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for content in (b"one", b"", b"\x00\xff" * 100_000):
        write_atomically(path, content)
        assert path.read_bytes() == content
        assert os.listdir(path.parent) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "fake"),
    [
        pytest.param("fdopen", FullFile, id="writing"),
        pytest.param("fsync", failing_with(NO_SPACE), id="flushing"),
        pytest.param("replace", failing_with(NO_SPACE), id="renaming"),
        pytest.param("replace", failing_with(KeyboardInterrupt()), id="interrupted"),
    ],
)
def test_failed_write_raises_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fake: Callable[..., Any]
) -> None:
    (tmp_path / "old").write_bytes(b"old")
    n_open = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, name, fake)
    for path in (tmp_path / "old", tmp_path / "new"):
        with pytest.raises((OSError, KeyboardInterrupt), match=r"No space left on device|^$"):
            write_atomically(path, b"new content")
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_process_that_ends_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    ends = "os.replace = lambda *_: os._exit(7)"
    code = f"import os, sys; from xformer.files import write_atomically; {ends}; write_atomically(sys.argv[1], b'new')"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 7
    assert path.read_bytes() == b"old"
    assert [half.suffix for half in tmp_path.iterdir() if half != path] == [".part"]  # the next worker removes it


def test_file_is_synced_before_the_rename_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def file_of(entries: Any, n_bytes: int = 0) -> bytes:
    header = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
    return len(header).to_bytes(8, "little") + header + bytes(n_bytes)


def tensor(begin: int, end: int, shape: Any = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def refused(content: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        parse_header(content)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_header_written_by_safetensors_is_parsed(dtype: torch.dtype) -> None:
    shapes = {"b": (2, 3), "a": (5,), "none": (0, 7)}
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    content = safetensors.torch.save(tensors, {"made by": "a test"})
    header = parse_header(content)
    assert header.metadata == {"made by": "a test"}
    assert {name: entry.shape for name, entry in header.tensors.items()} == {"a": [5], "b": [2, 3], "none": [0, 7]}
    for name, entry in header.tensors.items():
        assert entry.end - entry.begin == tensors[name].numel() * tensors[name].element_size()
    assert header.data_start + max(entry.end for entry in header.tensors.values()) == len(content)


def test_header_has_the_offsets_and_shapes_of_the_file() -> None:
    header = parse_header(file_of({"x": tensor(8, 20, [3]), "y": tensor(0, 8, [2, 1])}, 20))
    assert header.tensors == {"x": TensorEntry("F32", [3], 8, 20), "y": TensorEntry("F32", [2, 1], 0, 8)}
    assert header.metadata == {}
    assert parse_header(file_of({})).tensors == {}
    assert parse_header(file_of({"x": tensor(0, 4, [])}, 4)).tensors["x"].shape == []


@pytest.mark.parametrize(
    ("entries", "n_bytes", "words"),
    [
        pytest.param({"x": tensor(0, 8), "y": tensor(4, 12)}, 12, "overlaps another", id="overlap"),
        pytest.param({"x": tensor(0, 4), "y": tensor(8, 12)}, 12, "leaves a gap", id="gap"),
        pytest.param({"x": tensor(0, 4)}, 8, "take 4 bytes, but 8 follow", id="bytes left over"),
        pytest.param({"x": tensor(0, 8)}, 4, "take 8 bytes, but 4 follow", id="bytes missing"),
        pytest.param({"x": tensor(8, 0, [2])}, 8, "does not match its number of bytes", id="reversed"),
        pytest.param({"x": tensor(-4, 0, [1])}, 4, "two data_offsets", id="negative offset"),
        pytest.param({"x": tensor(0, 4, [1], "F64")}, 4, "does not match its number of bytes", id="dtype too wide"),
        pytest.param({"x": tensor(0, 0, [2**32, 2**32])}, 0, "does not match", id="shape that overflows to 0"),
        *(({"x": tensor(0, 4, shape)}, 4, "invalid shape") for shape in ([2**48], [1] * 9, [1.0], [True], "1")),
        ({"x": tensor(0, 4) | {"data_offsets": [0, 4, 8]}}, 4, "two data_offsets"),
        *(({"x": tensor(0, 4) | {"dtype": dtype}}, 4, f"unknown dtype {dtype!r}") for dtype in ("F31", ["F32"])),
        pytest.param({"x": tensor(0, 4) | {"extra": 1}}, 4, "and no other keys", id="an extra key"),
        pytest.param({"x": None}, 4, "must have dtype, shape and data_offsets", id="no entry"),
        *(({"__metadata__": metadata}, 0, "must map names to strings") for metadata in ({"n": 1}, [])),
        pytest.param([], 0, "must be a JSON object", id="a list"),
        pytest.param('{"x": {"shape": [], "shape": []}}', 0, "has a duplicate key", id="a duplicate key inside"),
        pytest.param('{"x": NaN}', 0, "contains NaN, which is not JSON", id="NaN"),
        pytest.param('{"x": 1e999}', 0, "contains the number 1e999, which is too large", id="too large"),
        *((text, 0, "not valid JSON") for text in ('{"x": ' + "9" * 5000 + "}", "", "[" * 100_000)),
        pytest.param({"n" * 100_000: None}, 0, "must have dtype", id="a long name"),
        pytest.param({"\ud800": None}, 0, "must have dtype", id="half a character"),
    ],
)
def test_invalid_header_is_rejected(entries: Any, n_bytes: int, words: str) -> None:
    message = refused(file_of(entries, n_bytes))
    assert words in message
    assert "\n" not in message
    message.encode()  # it can be shown
    assert len(message) < 300


def test_truncated_oversized_and_non_utf8_headers_are_rejected() -> None:
    assert refused(bytes(7)) == "The file is not a safetensors file: it has only 7 bytes."
    truncated = "The file is truncated: its header claims 100 bytes, but 2 follow."
    assert refused((100).to_bytes(8, "little") + b"{}") == truncated
    assert "the limit is 1,000,000" in refused((2**64 - 1).to_bytes(8, "little") + b"{}")
    assert "not UTF-8" in refused((4).to_bytes(8, "little") + b"\x80abc")


def test_number_of_tensors_is_limited() -> None:
    entries = {str(n): tensor(0, 0) for n in range(MAX_TENSORS + 1)}
    assert refused(file_of(entries)) == "The file contains 10,001 tensors; the limit is 10,000."
    entries.pop("0")
    assert len(parse_header(file_of(entries)).tensors) == MAX_TENSORS


def test_size_limit_of_the_header_can_be_raised() -> None:
    content = file_of({"__metadata__": {"long": "x" * MAX_HEADER}})
    refused(content)
    assert len(parse_header(content, 2 * MAX_HEADER).metadata["long"]) == MAX_HEADER


def test_strict_json_names_the_part_in_its_error() -> None:
    assert strict_json('{"a": [1, 2.5, null, true]}', "card") == {"a": [1, 2.5, None, True]}
    with pytest.raises(CheckpointError, match="The file's card is not valid JSON"):
        strict_json("nonsense", "card")
