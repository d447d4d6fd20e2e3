"""Is the process that trains a run alive? A lock that the operating system drops with its last holder, however it ends.

Whoever starts a worker takes the lock first and hands it over as an open file, so there is no moment at which a worker that
is still starting looks dead: the lock belongs to the open file, not to a process, and the child inherits it. No heartbeat, no
clock, no process number that another process may have got meanwhile. The number in the file is only looked at while the lock is
held, to kill who holds it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LENGTH = 512
"""Bytes of a lock file that somebody has signed."""
LONGEST_LOOK = 1.0
"""Seconds of silence that one look counts for at most: whoever was halted meanwhile has heard nothing."""


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


def sign(descriptor: int, pid: int, last_words: str = "") -> None:
    """Write down in the lock file which process holds the lock, and why it ends, for a process that can tell nobody else.

    The file has the same length from the first time on: a disk that is full meanwhile takes the words all the same.
    """
    os.pwrite(descriptor, f"{pid}\n{last_words}".encode()[:LENGTH].ljust(LENGTH), 0)


def holder(path: Path) -> int | None:
    """The process that has signed the lock file; means something only while the lock is held."""
    try:
        return int(_read(path)[0])
    except ValueError:
        return None


def last_words(path: Path) -> str:
    """Why the process that has signed the lock file has ended; nothing where it could not say."""
    return _read(path)[1].strip()


def is_held(path: Path) -> bool:
    """Whether some process holds the lock just now. Many may ask at once, without being in each other's way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_halted(pid: int) -> bool:
    """Whether a process stands still because it was sent SIGSTOP; not known, so False, on other systems than Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except (OSError, IndexError):
        return False


def activity(pid: int) -> tuple[str, ...] | None:
    """The state of a process, its processor time and how often it was switched to; None on other systems than Linux.

    Two equal answers mean that the process has done nothing in between.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        switches = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]
        return stat[0], stat[11], stat[12], *switches
    except (OSError, IndexError):
        return None


@dataclass(frozen=True)
class _Look:
    at: float
    activity: tuple[str, ...] | None
    silent: float


class SilenceWatch:
    """Measures how long a process has shown no sign of life, for a caller that looks again and again.

    A process is silent while it is halted, or sleeps without waking up once. A process that computes, waits for a processor or
    a disk, or polls is alive, so a slow start on a busy machine is not silence. Threads may share a watch.

    Example:
        >>> SilenceWatch().seconds("me", os.getpid())
        0.0
    """

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._one_at_a_time = threading.Lock()

    def seconds(self, name: str, pid: int) -> float:
        """Return the seconds without a sign of life, as far as the looks at `name` tell; 0 at the first one."""
        with self._one_at_a_time:
            now, found = time.monotonic(), activity(pid)
            last = self._looks.get(name)
            silent = 0.0
            if last is not None and found is not None and found[0] not in "RD" and found == last.activity:
                silent = last.silent + min(now - last.at, LONGEST_LOOK)
            self._looks[name] = _Look(now, found, silent)
            return silent

    def forget(self, name: str) -> None:
        """Forget a process that has begun or ended."""
        with self._one_at_a_time:
            self._looks.pop(name, None)


def _read(path: Path) -> tuple[str, str]:
    """The number in a lock file, as text, and the words after it; of a file that was not signed all of it, and none."""
    try:
        content = path.read_bytes()
    except OSError:
        return "", ""
    text = content.decode(errors="ignore")
    number, _, words = text.partition("\n") if len(content) == LENGTH else (text, "", "")
    return number, words
