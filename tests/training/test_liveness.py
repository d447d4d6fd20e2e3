"""The lock that shows whether a process is alive, its inheritance by child processes, and the detection of silence."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from xformer.training import liveness
from xformer.training.liveness import is_held, silent_seconds, take


def python(code: str, *descriptors: int) -> subprocess.Popen[str]:
    """Start a process that runs this code and inherits these descriptors, and wait until it has started."""
    command = [sys.executable, "-S", "-c", f"print('here', flush=True)\nimport time\n{code}"]
    process = subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.stdout.close()
    return process


def taken(path: Path) -> int:
    """Take a lock that must be free."""
    lock = take(path)
    assert lock is not None
    return lock


def test_reading_the_lock_does_not_block_it(tmp_path: Path) -> None:
    os.close(taken(tmp_path / "lock"))
    reader = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # another process checks the lock at the same moment
    assert not is_held(tmp_path / "lock")
    os.close(reader)


@pytest.mark.parametrize("is_inherited", [True, False])
def test_lock_is_held_only_by_children_that_inherit_it(tmp_path: Path, is_inherited: bool) -> None:
    """Any other child would keep a dead run alive."""
    path = tmp_path / "lock"
    mine = taken(path)
    child = python("time.sleep(600)", *([mine] if is_inherited else []))
    os.close(mine)  # the parent closes it immediately and may end
    assert is_held(path) == is_inherited
    child.kill()
    child.wait()
    assert not is_held(path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of `silent_seconds`, in seconds; assign to its first item to advance it."""
    now = [0.0]
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(liveness, "last_looks", {})
    return now


@pytest.mark.skipif(sys.platform != "linux", reason="activity is only available on Linux")
def test_halted_process_is_silent_and_computing_process_is_not(clock: list[float]) -> None:
    process = python("while True: pass")
    try:
        looks = []
        for _ in range(3):
            before = liveness.activity(process.pid)
            deadline = time.monotonic() + 60
            while liveness.activity(process.pid) == before:  # on a busy machine it may not be scheduled immediately
                assert time.monotonic() < deadline
                time.sleep(0.01)
            looks.append(silent_seconds("busy", process.pid))
            clock[0] += 0.5
        assert looks == [0.0] * 3
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        for seconds in (0.0, 0.5, 3600.0):  # a server that checks after an hour may have been halted itself
            clock[0] += seconds
            silent = silent_seconds("halted", process.pid)
        assert silent == 0.5 + liveness.LONGEST_LOOK
    finally:
        process.kill()
        process.wait()


def test_any_sign_of_life_resets_the_silence(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter(["S1", "S1", "S1", "S2", "S2", "R2", "R2", "D2", "D2", None, None])
    monkeypatch.setattr(liveness, "activity", lambda _: (found := next(seen)) and tuple(found))
    found = []
    for _ in range(11):
        found.append(silent_seconds("it", 1))
        clock[0] += 0.5
    assert found == [0.0, 0.5, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
