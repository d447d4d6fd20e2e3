"""The spare: a run is in somebody's hands at every moment, and whatever happens to it, a worker is started the slow way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xformer.training import dispatch, liveness, spare
from xformer.training.run_store import RunStore
from xformer.training.spare import Spare

DEADLINE = 60.0
# Says who it is and what it was given, and holds its lock for as long as a file is there.
WORKER = """
import os, sys, time
from xformer.training.spare import serve
def train(arguments, spare):
    print(*arguments[:-1], os.getppid() == spare, os.getsid(0) == os.getpid(), sys.stdin.read() == "", flush=True)
    while os.path.exists(arguments[0]):
        time.sleep(0.01)
    return 0
sys.exit(serve(train))
"""
HALTED = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Spare]]:
    """A spare of this test's, kept until its end."""
    made = []
    monkeypatch.setattr(spare, "free_bytes", lambda: spare.PLENTY)

    def keep(code: str = WORKER) -> Spare:
        made.append(Spare([sys.executable, "-c", code]))
        made[0].keep()
        assert made[0].process is not None
        return made[0]

    yield keep
    for one in made:
        one.close()


class Run:
    """What the dispatcher has of a run when it starts its worker."""

    def __init__(self, folder: Path) -> None:
        self.lock, self.log, self.busy = folder / "worker.lock", folder / "worker.log", folder / "busy"
        self.busy.touch()

    def hand_to(self, spare: Spare) -> bool:
        lock = liveness.take(self.lock)
        assert lock is not None
        try:
            with open(self.log, "ab") as log:
                return spare.take([str(self.busy), "--folder"], lock, log.fileno())
        finally:
            os.close(lock)

    def end(self) -> None:
        self.busy.unlink()
        wait(lambda: not liveness.is_held(self.lock))


def wait(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_it_forks_workers_that_outlive_it(kept: Callable[..., Spare], tmp_path: Path) -> None:
    one, runs = kept(), []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(Run(tmp_path / name))
        assert runs[-1].hand_to(one)
        assert liveness.is_held(runs[-1].lock)  # from the first moment on
    for run in runs:
        wait(run.log.read_text)
        assert run.log.read_text().split() == [str(run.busy), "--folder", "--lock", "True", "True", "True"]
    pids = {liveness.holder(run.lock) for run in runs}
    assert one.process is not None
    assert len(pids) == 2
    assert one.process.pid not in pids
    one.close()
    assert all(liveness.is_held(run.lock) for run in runs)
    for run in runs:
        run.end()
    wait(lambda: all(is_gone(pid) for pid in pids if pid))


def test_it_ends_with_its_server() -> None:
    code = "import sys\nfrom xformer.training import spare\n" + (
        f"one = spare.Spare([sys.executable, '-c', {WORKER!r}])\nspare.free_bytes = lambda: spare.PLENTY\none.keep()\n"
        "print(one.process.pid, flush=True)\nsys.stdin.read()"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    with server.stdin, server.stdout:
        pid = int(server.stdout.readline())
        assert not is_gone(pid)
        server.kill()
        server.wait()
    wait(lambda: is_gone(pid))


def test_one_that_was_killed_takes_nothing_and_is_replaced_later(
    kept: Callable[..., Spare], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, run = kept(), Run(tmp_path)
    assert one.process is not None
    one.process.kill()
    wait(lambda: one.process is None or one.process.poll() is not None)
    assert not run.hand_to(one)
    assert not liveness.is_held(run.lock)
    one.keep()
    assert one.process is None
    monkeypatch.setattr(spare, "AGAIN_SECONDS", 0.0)
    one._not_before = 0.0
    one.keep()
    assert run.hand_to(one)
    run.end()


def test_one_that_is_killed_with_a_run_in_its_hands_lets_go_of_its_lock(
    kept: Callable[..., Spare], tmp_path: Path
) -> None:
    one, run = kept(HALTED), Run(tmp_path)
    assert one.process is not None
    assert run.hand_to(one)
    assert liveness.is_held(run.lock)
    assert liveness.holder(run.lock) == one.process.pid  # who is killed where a stop is not obeyed
    os.kill(one.process.pid, signal.SIGKILL)
    wait(lambda: not liveness.is_held(run.lock))


def test_one_that_is_halted_is_given_no_more_than_it_can_hold(kept: Callable[..., Spare], tmp_path: Path) -> None:
    one, taken = kept(HALTED), 0
    run = Run(tmp_path)
    lock = liveness.take(run.lock)
    assert lock is not None
    while one.take(["x" * 5000], lock, lock):
        taken += 1
        assert taken < 10_000, "it takes for ever what nobody reads"
    os.close(lock)
    assert one.process is None
    wait(lambda: not liveness.is_held(run.lock))


def test_there_is_none_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    one, free = Spare([sys.executable, "-c", WORKER]), [spare.PLENTY - 1]
    monkeypatch.setattr(spare, "free_bytes", lambda: free[0])
    one.keep()
    assert one.process is None
    free[0] = spare.PLENTY
    one.keep()
    assert one.process is not None
    pid, free[0] = one.process.pid, spare.SHORT
    one.keep()
    assert one.process is not None
    free[0] = spare.SHORT - 1
    one.keep()
    assert one.process is None
    assert is_gone(pid)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_where_there_is_no_gpu_it_yields_to_everyone(
    kept: Callable[..., Spare], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_gpu: bool
) -> None:
    (tmp_path / "gpu").touch()
    monkeypatch.setattr(spare, "GPUS", ("/nowhere", str(tmp_path / "gpu"))[: 1 + has_gpu])
    process = kept().process
    assert process is not None
    usual = os.sched_getscheduler(0)
    assert os.sched_getscheduler(process.pid) == (usual if has_gpu else os.SCHED_IDLE)


@pytest.mark.parametrize("may", [True, False])
def test_once_it_has_a_run_it_yields_no_longer_where_that_is_allowed(
    kept: Callable[..., Spare], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    one, run, asked = kept(), Run(tmp_path), []

    def schedule(pid: int, policy: int, _parameter: object) -> None:
        asked.append((pid, policy))
        if not may:
            raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    assert run.hand_to(one)
    assert one.process is not None
    assert asked == [(one.process.pid, os.SCHED_OTHER)]
    run.end()


def test_a_process_with_several_threads_forks_nothing(kept: Callable[..., Spare]) -> None:
    one = kept(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e4,), daemon=True).start()\n" + WORKER
    )
    assert one.process is not None
    assert one.process.wait(DEADLINE) == 0


@pytest.mark.parametrize("takes", [True, False])
def test_a_worker_is_started_the_slow_way_where_no_spare_takes_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    given, started = [], []

    class Process:
        pid = 7

        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def wait(self) -> None: ...

    folder = store.folder_of("run")
    lock = liveness.take(folder / "worker.lock")
    assert lock is not None
    monkeypatch.setattr(dispatch.subprocess, "Popen", Process)
    monkeypatch.setattr(dispatch.spare, "take", lambda arguments, *_: given.append(arguments) or takes)
    dispatch._spawn(folder, store, "run", "token", lock)
    os.close(lock)
    assert given == [["run", "--folder", str(store.folder.resolve()), "--token", "token"]]
    assert len(started) == (not takes)
    assert takes or started[0][-7:] == [*given[0], "--lock", str(lock)]
