"""Opening a file that a stranger may have made: only a regular file of a size that is allowed, and first only its beginning.

    with guarded(path, max_bytes=2 * 1024**3) as (file, size):
        header = parse_header(file.read(8 + MAX_HEADER), size=size)   # what it claims is checked before more is read

A named pipe would keep the reader waiting for ever; a sparse file of gigabytes is made in a moment, and reading it takes all
memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from xformer.errors import XformerError


@contextmanager
def guarded(path: str | Path, max_bytes: int, error: type[XformerError]) -> Iterator[tuple[BinaryIO, int]]:
    """The open file and its size in bytes. Raises `error` with one plain sentence where it is refused."""
    try:
        # Opening a pipe for reading waits for a writer, unless told not to.
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
