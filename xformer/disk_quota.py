"""The disk quota that runs and stored texts share.

room = DiskQuota(runs)                # the folder of runs, and the texts; XFORMER_MAX_DISK bytes in total
room.taken()                          # bytes in use
room.check(n, "This text")            # raises QuotaExceededError if n more bytes exceed the quota
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from xformer.errors import QuotaExceededError
from xformer.installed import KEPT

DEFAULT_MOST = 4 * 1024**3
VARIABLE = "XFORMER_MAX_DISK"
READ_ONLY = "XFORMER_RUNS_READ_ONLY"
"""Set by `xformer app --runs FOLDER`: the server shows the runs of a folder and changes nothing in it."""
SPARE = 4 * 1024**2
"""Bytes that stay free on the disk, so that the run store can still record why a run has stopped."""
LOOK_SHARE = 0.02
"""Largest fraction of time spent on measuring the files again."""


def runs_folder() -> Path:
    """Return the folder of this server's runs."""
    return Path(os.environ.get("XFORMER_RUNS") or KEPT / "checkpoints" / "runs")


def is_read_only() -> bool:
    """Whether the runs are only shown."""
    return os.environ.get(READ_ONLY) == "1"


def rooms_folder() -> Path:
    """Return the folder of the rooms: that of the runs, unless they are only shown."""
    return KEPT / "checkpoints" / "runs" if is_read_only() else runs_folder()


def texts_folder() -> Path:
    """Return the folder of stored texts."""
    return Path(os.environ.get("XFORMER_DATA") or KEPT / "data")


def allowed() -> int:
    """Return the quota in bytes. An invalid value of the variable gives the default here; `Limits` reports the error."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdecimal() else DEFAULT_MOST


class DiskQuota:
    """The disk space that runs and texts use, and its quota. Usage is measured only from time to time; see `LOOK_SHARE`."""

    def __init__(self, runs: Path | None = None, most: int | None = None) -> None:
        self.runs = runs or runs_folder()
        self._most = most
        self._found = self._written = 0
        self._next_look = 0.0

    @property
    def most(self) -> int:
        """The quota in bytes."""
        return allowed() if self._most is None else self._most

    def taken(self) -> int:
        """Return the bytes in use: the last measurement plus the bytes reported to `wrote` since then."""
        now = time.monotonic()
        if now >= self._next_look:
            self._found, self._written = disk_used(self.runs, texts_folder()), 0
            took = time.monotonic() - now
            self._next_look = time.monotonic() + took / LOOK_SHARE
        return self._found + self._written

    def wrote(self, n: int) -> None:
        """Count `n` newly written bytes. Do not count a file that replaces one of the same size."""
        self._written += n

    def check(self, n: int, what: str, *, promised: int = 0) -> None:
        """Raise `QuotaExceededError` if `n` more bytes exceed the quota or the free disk space.

        `what` is the subject of the message. `promised` bytes are reserved for others but not written yet.
        """
        taken = self.taken() + promised
        if taken + n > self.most:
            reserved = f" ({megabytes(promised)} of it reserved for waiting and active runs)" if promised else ""
            used = f"Runs and texts on this server already take {megabytes(taken)}{reserved}"
            how = "delete some runs (this frees their space after an hour)"
            raise QuotaExceededError(
                f"{what} takes {megabytes(n)}. {used}, and {megabytes(self.most)} are allowed; {how}."
            )
        if n > (free := free_on_disk(self.runs) - SPARE):
            raise QuotaExceededError(f"{what} takes {megabytes(n)}, and {megabytes(free)} are free on the disk.")


def free_on_disk(folder: Path) -> int:
    """Return the free bytes of the disk on which a folder is or will be created."""
    folder = folder.resolve()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def disk_used(*folders: Path) -> int:
    """Return the total size in bytes of all files in some folders; nested folders are counted once."""
    found = {folder.resolve() for folder in folders}
    return sum(_sizes(folder) for folder in found if not found & set(folder.parents))


def _sizes(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # deleted meanwhile
                total += os.stat(os.path.join(root, name)).st_size
    return total


def megabytes(n: int) -> str:
    """Return a number of bytes as text: "0.1 MB", "4.0 GB"."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{max(0.1, n / 1e6):.1f} MB"
