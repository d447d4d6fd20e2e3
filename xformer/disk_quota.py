"""How much of the disk runs and kept texts take together: one function says it, one refuses what does not fit.

room = Room(runs)                     # the folder of runs, and the texts; XFORMER_MAX_DISK bytes in all
room.taken()                          # bytes
room.check(n, "This text")            # raises QuotaExceededError, in one sentence
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from xformer.errors import QuotaExceededError
from xformer.installed import KEPT

DEFAULT_MOST = 4 * 1024**3
VARIABLE = "XFORMER_MAX_DISK"
SPARE = 4 * 1024**2
"""Stays free on the disk, so that the run store can still say why a run has stopped."""
LOOK_SHARE = 0.02
"""The largest share of the time that is spent on counting the files again."""


def runs_folder() -> Path:
    """Where the runs of this server are kept."""
    return Path(os.environ.get("XFORMER_RUNS") or KEPT / "checkpoints" / "runs")


def texts_folder() -> Path:
    """Where texts are kept."""
    return Path(os.environ.get("XFORMER_DATA") or KEPT / "data")


def allowed() -> int:
    """What everything may take together; the usual where the environment holds nonsense, of which `Limits` complains."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdecimal() else DEFAULT_MOST


class Room:
    """What is kept here, counted. One that is kept for long counts anew only now and then; see `taken`."""

    def __init__(self, runs: Path | None = None, most: int | None = None) -> None:
        self.runs = runs or runs_folder()
        self._most = most
        self._found = self._written = 0
        self._next_look = 0.0

    @property
    def most(self) -> int:
        """Bytes that may be taken."""
        return allowed() if self._most is None else self._most

    def taken(self) -> int:
        """Bytes that are taken. What `wrote` has reported since the last count is added."""
        now = time.monotonic()
        if now >= self._next_look:
            self._found, self._written = disk_used(self.runs, texts_folder()), 0
            took = time.monotonic() - now
            self._next_look = time.monotonic() + took / LOOK_SHARE
        return self._found + self._written

    def wrote(self, n: int) -> None:
        """Add what has been written since; a file that was written in place of one of its size is none."""
        self._written += n

    def check(self, n: int, what: str, *, promised: int = 0) -> None:
        """Raise `QuotaExceededError` where `n` bytes more are more than is allowed, or than is free on the disk.

        `promised` bytes are not there yet, and belong to others.
        """
        taken = self.taken() + promised
        if taken + n > self.most:
            soon = f" ({megabytes(promised)} of it runs that wait or are trained)" if promised else ""
            raise QuotaExceededError(
                f"{what} takes {megabytes(n)}. Runs and texts on this server take {megabytes(taken)} already{soon}, and "
                f"{megabytes(self.most)} are allowed; delete some runs (their room is free after an hour)."
            )
        if n + SPARE > (free := free_on_disk(self.runs)):
            raise QuotaExceededError(
                f"{what} takes {megabytes(n)}, and {megabytes(max(0, free - SPARE))} are free on the disk."
            )


def free_on_disk(folder: Path) -> int:
    """The bytes that are free where a folder is, or will be."""
    folder = folder.resolve()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def disk_used(*folders: Path) -> int:
    """The bytes of all files in some folders; one that lies in another is counted once."""
    found = {folder.resolve() for folder in folders}
    return sum(_sizes(folder) for folder in found if not found & set(folder.parents))


def _sizes(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total


def megabytes(n: int) -> str:
    """A number of bytes as people say it."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{max(0.1, n / 1e6):.1f} MB"
