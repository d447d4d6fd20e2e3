"""Files: atomic writes, guarded reads of untrusted files, and safetensors headers.

A file is written to a temporary name, flushed, and renamed over the old one; the folder is flushed too, as a rename in memory
is lost in a power failure.
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

from xformer.errors import CheckpointError, XformerError


def write_atomically(path: str | Path, content: bytes) -> None:
    """Put `content` at `path`, creating the folder. Raises `OSError` and leaves nothing behind when it cannot."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
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
    """The open file and its size in bytes. Raises `error` with one plain sentence where it is refused."""
    try:
        # Opening a pipe for reading waits for a writer without this flag.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{_shown(path)} is not a regular file, so it is not read; give the path of a file.")
            if status.st_size > max_bytes:
                raise error(f"{_shown(path)} has {status.st_size:,} bytes; at most {max_bytes:,} are read.")
            yield file, status.st_size
    except (OSError, ValueError) as problem:  # ValueError: a path with a zero byte in it
        raise error(f"{_shown(path)} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None


def _shown(path: str | Path) -> str:
    return f"The file {Path(path).name[:200]!r}"


MAX_HEADER = 1_000_000

MAX_TENSORS = 10_000

_WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}

_WIDTH |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1}


@dataclass(frozen=True)
class TensorEntry:
    """The entry of one tensor in the header."""

    dtype: str
    shape: list[int]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A header whose claims hold."""

    metadata: dict[str, str]
    tensors: dict[str, TensorEntry]
    data_start: int


def parse_header(content: bytes, max_header: int = MAX_HEADER, *, size: int | None = None) -> Header:
    """The checked header, of at most `max_header` bytes, of a file of `size` bytes that begins with `content`.

    Without `size`, `content` is the whole file. Raises `CheckpointError` with one plain sentence at the first claim that does
    not hold.
    """
    size = len(content) if size is None else size
    if len(content) < 8:
        raise CheckpointError(f"The file is no safetensors file: it has only {len(content)} bytes.")
    length = int.from_bytes(content[:8], "little")
    if length > max_header:
        raise CheckpointError(
            f"The file's header claims {length:,} bytes; at most {max_header:,} are read. Is it a safetensors file?"
        )
    if 8 + length > size:
        raise CheckpointError(f"The file is cut short: its header claims {length:,} bytes, {size - 8:,} follow.")
    raw = content[8 : 8 + length]
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise CheckpointError("The file's header is not UTF-8 text; it is no safetensors file.") from None
    entries = strict_json(text, "header")
    if not isinstance(entries, dict):
        raise CheckpointError("The file's header must be a JSON object.")
    metadata = _checked_metadata(entries.pop("__metadata__", {}))
    if len(entries) > MAX_TENSORS:
        raise CheckpointError(f"The file holds {len(entries):,} tensors; at most {MAX_TENSORS:,} are read.")
    tensors = {name: _entry(name, value) for name, value in entries.items()}
    _check_layout(tensors, size - 8 - length)
    return Header(metadata, tensors, 8 + length)


def strict_json(text: str, what: str) -> Any:
    """JSON in which no key comes twice and every number is finite. Raises `CheckpointError` naming `what`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise CheckpointError(f"The file's {what} names a key twice.")
        return keys

    def refuse(constant: str) -> None:
        raise CheckpointError(f"The file's {what} holds {constant}, which is not JSON.")

    def finite(number: str) -> float:
        if math.isinf(float(number)):
            raise CheckpointError(f"The file's {what} holds {number:.40}, which is too large a number.")
        return float(number)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError):
        raise CheckpointError(f"The file's {what} is not valid JSON.") from None


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("The file's metadata must map names to text.")
    return metadata


def _entry(name: str, value: Any) -> TensorEntry:
    shown = f"{name!r:.100}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"The file's entry {shown} must have a dtype, a shape and data_offsets, and nothing else."
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTH:
        raise CheckpointError(f"The file's tensor {shown} has an unknown dtype {dtype!r:.40}.")
    if not _whole_numbers(shape) or len(shape) > 8:
        raise CheckpointError(f"The file's tensor {shown} has an impossible shape.")
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
"""The readable copy of its card."""
STATE = "state.safetensors"
"""The state that an interrupted run resumes from."""


def is_finished(folder: Path) -> bool:
    """Whether the run of this folder is finished: it has a model and no state to resume from."""
    return (folder / FILE).exists() and not (folder / STATE).exists()


def snapshot_file(out: Path, step: int) -> Path:
    """The file of the snapshot of a step."""
    return out / "snapshots" / f"{step:06d}.safetensors"


def snapshot_steps(out: Path) -> list[int]:
    """The steps that have a snapshot, in order; files with other names are ignored."""
    try:
        names = [file.stem for file in (out / "snapshots").glob("*.safetensors")]
    except OSError:  # a folder that may not be read
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name == f"{int(name):06d}")
