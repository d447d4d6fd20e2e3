"""Files: atomic writes, guarded reads of untrusted files, and safetensors headers.

A file is written under a temporary name, synced to disk, and renamed over the old file. The folder is synced too, because a
rename that is only in memory is lost in a power failure.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from xformer.errors import CheckpointError, InputError, XformerError


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write `content` to `path`, creating its folder. On failure, raises `OSError` and leaves the old file unchanged."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def guarded(path: str | Path, max_bytes: int, error: type[XformerError]) -> Iterator[tuple[BinaryIO, int]]:
    """Open an untrusted file and yield it with its size in bytes. Raises `error` with one sentence if it is rejected."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{_shown(path)} is not a regular file and was not read; give the path of a file.")
            if status.st_size > max_bytes:
                raise error(f"{_shown(path)} has {status.st_size:,} bytes; the limit is {max_bytes:,}.")
            yield file, status.st_size
    except (OSError, ValueError) as problem:  # ValueError: the path contains a null byte
        raise error(f"{_shown(path)} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None


def read_text(path: str | Path, max_bytes: int) -> str:
    """Return the content of an untrusted UTF-8 file. Raises `InputError` with one sentence if it is rejected."""
    with guarded(path, max_bytes, InputError) as (file, _):
        content = file.read(max_bytes + 1)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{Path(path).name} must be UTF-8 text; byte {error.start} is not.") from None


def _shown(path: str | Path) -> str:
    return f"The file {Path(path).name[:200]!r}"


MAX_HEADER = 1_000_000

MAX_TENSORS = 10_000

_WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
_WIDTH |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1}


@dataclass(frozen=True)
class TensorEntry:
    """The header entry of one tensor."""

    dtype: str
    shape: list[int]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A validated header."""

    metadata: dict[str, str]
    tensors: dict[str, TensorEntry]
    data_start: int


def parse_header(content: bytes, max_header: int = MAX_HEADER, *, size: int | None = None) -> Header:
    """Parse and validate the header of a safetensors file.

    `safetensors.safe_open` is not used, as it needs a path, maps the file into memory, and accepts duplicate and unknown keys.

    Args:
        content: The beginning of the file, including the header.
        max_header: Largest size of the header in bytes.
        size: The size of the file in bytes; by default the length of `content`.

    Raises:
        CheckpointError: The header is invalid or does not match the file. The message is one sentence.
    """
    size = len(content) if size is None else size
    if len(content) < 8:
        raise CheckpointError(f"The file is not a safetensors file: it has only {len(content)} bytes.")
    length = int.from_bytes(content[:8], "little")
    if length > max_header:
        what = f"The file's header claims {length:,} bytes"
        raise CheckpointError(f"{what}; the limit is {max_header:,}. Is it a safetensors file?")
    if 8 + length > size:
        raise CheckpointError(f"The file is truncated: its header claims {length:,} bytes, but {size - 8:,} follow.")
    raw = content[8 : 8 + length]
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise CheckpointError("The file's header is not UTF-8 text, so it is not a safetensors file.") from None
    entries = strict_json(text, "header")
    if not isinstance(entries, dict):
        raise CheckpointError("The file's header must be a JSON object.")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("The file's metadata must map names to strings.")
    if len(entries) > MAX_TENSORS:
        raise CheckpointError(f"The file contains {len(entries):,} tensors; the limit is {MAX_TENSORS:,}.")
    tensors = {name: _entry(name, value) for name, value in entries.items()}
    _check_layout(tensors, size - 8 - length)
    return Header(metadata, tensors, 8 + length)


def strict_json(text: str, what: str) -> Any:
    """Parse JSON without duplicate keys and with finite numbers only. Raises `CheckpointError`, whose message names `what`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise CheckpointError(f"The file's {what} has a duplicate key.")
        return keys

    def reject(constant: str) -> None:
        raise CheckpointError(f"The file's {what} contains {constant}, which is not JSON.")

    def finite(number: str) -> float:
        if math.isinf(float(number)):
            raise CheckpointError(f"The file's {what} contains the number {number:.40}, which is too large.")
        return float(number)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=reject, parse_float=finite)
    except (ValueError, RecursionError):
        raise CheckpointError(f"The file's {what} is not valid JSON.") from None


def _entry(name: str, value: Any) -> TensorEntry:
    shown = f"{name!r:.100}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"The file's entry {shown} must have dtype, shape and data_offsets, and no other keys.")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTH:
        raise CheckpointError(f"The file's tensor {shown} has an unknown dtype {dtype!r:.40}.")
    if not _whole_numbers(shape) or len(shape) > 8:
        raise CheckpointError(f"The file's tensor {shown} has an invalid shape.")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise CheckpointError(f"The file's tensor {shown} must have two data_offsets.")
    begin, end = offsets
    if end - begin != math.prod(shape) * _WIDTH[dtype]:
        raise CheckpointError(f"The file's tensor {shown} has a shape that does not match its number of bytes.")
    return TensorEntry(dtype, shape, begin, end)


def _check_layout(tensors: dict[str, TensorEntry], n_bytes: int) -> None:
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            kind = "overlaps another" if tensor.begin < position else "leaves a gap before it"
            raise CheckpointError(f"The file's tensor {name!r:.100} {kind}.")
        position = tensor.end
    if position != n_bytes:
        raise CheckpointError(f"The file's tensors take {position:,} bytes, but {n_bytes:,} follow the header.")


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)


FILE = "model.safetensors"
"""The model with its configuration."""
CARD = "card.json"
"""A human-readable copy of the model's card."""
STATE = "state.safetensors"
"""The state from which an interrupted run resumes."""


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is finished: it has a model and no state to resume from."""
    return (folder / FILE).exists() and not (folder / STATE).exists()


def snapshot_file(out: Path, step: int) -> Path:
    """Return the path of the snapshot of a step."""
    return out / "snapshots" / f"{step:06d}.safetensors"


def snapshot_steps(out: Path) -> list[int]:
    """Return the steps that have a snapshot, in ascending order. Files with other names are ignored."""
    try:
        names = [file.stem for file in (out / "snapshots").glob("*.safetensors")]
    except OSError:  # no permission to read the folder
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name == f"{int(name):06d}")
