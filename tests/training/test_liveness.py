"""The lock that says whether a process lives: its own, inherited, dropped with its last holder."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from xformer.training import liveness
from xformer.training.liveness import LENGTH, SilenceWatch, holder, is_held, last_words, sign, take, take_within


def python(code: str, *descriptors: int) -> subprocess.Popen[str]:
    """A process that has begun to run this code, and has inherited these descriptors."""
    command = [sys.executable, "-c", f"print('here', flush=True)\nimport time\n{code}"]
    process = subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.stdout.close()
    return process


def taken(path: Path) -> int:
    """The lock, which nobody has."""
    lock = take(path)
    assert lock is not None
    return lock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not is_held(path)
    assert not path.exists()  # looking leaves nothing behind
    mine = taken(path)
    assert is_held(path)
    assert take(path) is None
    os.close(mine)
    assert not is_held(path)
    os.close(taken(path))


def test_of_many_that_take_it_at_once_one_gets_it(tmp_path: Path) -> None:
    path, barrier, taken = tmp_path / "lock", threading.Barrier(8), []

    def grab() -> None:
        barrier.wait()
        taken.append(take(path))

    threads = [threading.Thread(target=grab) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [descriptor for descriptor in taken if descriptor is not None]
    assert len(held) == 1
    os.close(held[0])


def test_a_child_inherits_the_lock_and_its_death_drops_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = taken(path)
    child = python("time.sleep(600)", mine)
    os.close(mine)  # the parent closes it at once, and may end
    assert is_held(path)
    child.kill()
    child.wait()
    assert not is_held(path)


def test_other_children_do_not_inherit_it(tmp_path: Path) -> None:
    """Else a browser, a compiler, or the next worker would keep a dead run alive."""
    mine, other = taken(tmp_path / "lock"), os.open(tmp_path, os.O_RDONLY)
    child = python("time.sleep(600)", other)
    os.close(other)
    os.close(mine)
    assert not is_held(tmp_path / "lock")
    child.kill()
    child.wait()


def test_waiting_for_a_holder_to_let_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = taken(path)
    assert take_within(path, 0.05) is None
    timer = threading.Timer(0.05, os.close, [mine])
    timer.start()
    theirs = take_within(path, 60)
    assert theirs is not None
    os.close(theirs)
    timer.join()


@pytest.mark.parametrize("content", ["", "nonsense", "1 2"])
def test_an_unsigned_lock_names_no_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    assert holder(tmp_path / "lock") is None
    assert holder(tmp_path / "nothing") is None


def test_last_words_stand_beside_the_signature_and_take_no_more_room(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert last_words(path) == ""
    mine = taken(path)
    sign(mine, 123)
    assert (holder(path), last_words(path), path.stat().st_size) == (123, "", LENGTH)
    sign(mine, 123, "The disk is full – “so”. " * 100)
    assert (holder(path), path.stat().st_size) == (123, LENGTH)
    assert last_words(path).startswith("The disk is full – “so”. The disk")
    sign(mine, 4)
    assert (holder(path), last_words(path)) == (4, "")
    os.close(mine)


def test_reading_the_lock_does_not_block_it(tmp_path: Path) -> None:
    os.close(taken(tmp_path / "lock"))
    looking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)  # another one looks at this very moment
    assert not is_held(tmp_path / "lock")
    os.close(looking)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a watch sees, in seconds."""
    now = [0.0]
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def looks(clock: list[float], pid: int, n: int = 10, seconds: float = 0.5) -> float:
    """How long a process has been silent after so many looks."""
    watch, silent = SilenceWatch(), 0.0
    for _ in range(n):
        silent = watch.seconds("it", pid)
        clock[0] += seconds
    return silent


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that announces itself and then runs this code."""
    process = python(request.param)
    yield process
    process.kill()
    process.wait()


def wait_until_asleep(pid: int) -> None:
    """Wait until a process does nothing any more."""
    deadline, before = time.monotonic() + 60.0, None
    while (now := liveness.activity(pid)) != before or now is None or now[0] != "S":
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what a process does")
@pytest.mark.parametrize("process", ["time.sleep(600)"], indirect=True)
def test_a_process_that_sleeps_is_silent_and_one_that_is_halted_too(
    process: subprocess.Popen[str], clock: list[float]
) -> None:
    wait_until_asleep(process.pid)
    assert looks(clock, process.pid) == 4.5
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert looks(clock, process.pid) == 4.5
    # A server that looks after an hour may have been suspended.
    assert looks(clock, process.pid, n=2, seconds=3600.0) == liveness.LONGEST_LOOK


@pytest.mark.parametrize("process", ["while True: pass", "while True: time.sleep(0.001)"], indirect=True)
def test_a_process_that_computes_or_wakes_up_is_alive_however_busy_the_machine(
    process: subprocess.Popen[str], clock: list[float]
) -> None:
    os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    watch, silent = SilenceWatch(), []
    for _ in range(100):
        silent.append(watch.seconds("it", process.pid))
        clock[0] += 0.5
        time.sleep(0.01)
    assert max(silent) < 5.0  # ten looks in a row that find nothing


def test_what_the_system_does_not_say_is_no_silence(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "activity", lambda _: None)
    assert looks(clock, os.getpid()) == 0.0


def test_one_sign_of_life_starts_the_count_again(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter(["S1", "S1", "S1", "S2", "S2", "R2", "R2", "D2", "D2"])
    monkeypatch.setattr(liveness, "activity", lambda _: tuple(next(seen)))
    watch, found = SilenceWatch(), []
    for _ in range(9):
        found.append(watch.seconds("it", 1))
        clock[0] += 0.5
    assert found == [0.0, 0.5, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]
