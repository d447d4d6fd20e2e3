"""Is the process that trains a run alive? A lock that the operating system drops with its last holder, however it ends.

Whoever starts a worker takes the lock first and hands it over as an open file, so there is no moment at which a worker that
is still starting looks dead: the lock belongs to the open file, not to a process, and the child inherits it. No heartbeat, no
clock, no process number that another process may have got meanwhile. The number in the file is only looked at while the lock is
held, to kill who holds it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


def take(path: Path) -> int | None:
    """The lock as an open file descriptor, to be closed or handed over; None when somebody holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def take_within(path: Path, seconds: float) -> int | None:
    """The same, waiting so long for a holder that is about to let go."""
    deadline = time.monotonic() + seconds
    while (descriptor := take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return descriptor


def sign(descriptor: int, pid: int) -> None:
    """Write down in the lock file which process holds the lock."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(pid).encode(), 0)


def holder(path: Path) -> int | None:
    """The process that has signed the lock file; means something only while the lock is held."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def is_held(path: Path) -> bool:
    """Whether some process holds the lock just now."""
    if not path.exists():
        return False
    descriptor = take(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
