"""The queue: which runs are started, which workers are recorded as dead or killed, and concurrent requests."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.training.at_work import PRESET, LocalRun, at_once, failing_with, quick_worker, waiting
from tests.training.tiny import tiny_preset
from xformer.errors import ConfigError, RunStoreError
from xformer.training import commands, jobs, liveness, worker
from xformer.training.executors import process as processes
from xformer.training.limits import Limits
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore

DEADLINE = 120.0
ONE, TWO = ["cpu"], ["cuda:0", "cpu"]
"""The devices of a machine without a GPU and with one."""
GONE = "Its process ended without an error message: it was killed, ran out of memory, or the machine was restarted."
UNANSWERED = "Its process ended before it responded. Resume continues from the last saved state."
HANG = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


class Office:
    """Fake workers: records each start, and holds the lock until the worker dies. With `hangs`, starts a process that hangs."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.hangs = store, False
        self.started: list[str] = []
        self.locks: dict[str, int] = {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def spawn(self, store: RunStore, run: str, token: str, lock: int) -> None:
        self.started.append(run)
        if not self.hangs:
            self.locks[run] = os.dup(lock)
            return
        process = subprocess.Popen([sys.executable, "-c", HANG], pass_fds=(lock,), stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        liveness.sign(lock, process.pid)
        self.processes.append(process)

    def submit(self, settings: Any = PRESET, **how: Any) -> str:
        return jobs.submit(self.store, settings, **how)

    def hang(self) -> tuple[str, subprocess.Popen[bytes]]:
        """Submit a run whose worker hangs from the start and ignores commands."""
        self.hangs = True
        return self.submit(), self.processes[-1]

    def tend(self) -> None:
        jobs.reconcile(self.store)

    def shown(self, run: str) -> tuple[str, str]:
        return self.store.entry(run).state, self.store.entry(run).message

    def states(self, *runs: str) -> list[str]:
        return [self.store.entry(run).state for run in runs]

    def die(self, run: str) -> None:
        os.close(self.locks.pop(run))
        self.tend()

    def release(self, run: str, state: str) -> None:
        """End a run as its worker does."""
        worker.release(self.store, run, str(self.store.entry(run).worker), state, "")
        self.die(run)

    def wait_until(self, run: str, holds: Callable[[RunRecord], bool]) -> RunRecord:
        """Reconcile until a condition holds for a run."""
        deadline = time.monotonic() + DEADLINE
        while not holds(entry := self.store.entry(run)):
            assert time.monotonic() < deadline, entry
            time.sleep(0.05)
            self.tend()
        return entry


@pytest.fixture
def office(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    office = Office(store)
    monkeypatch.setattr(processes, "spawn", office.spawn)
    monkeypatch.setattr(jobs, "devices", lambda: ["cpu"])
    yield office
    for lock in office.locks.values():
        os.close(lock)
    for process in office.processes:
        process.kill()
        process.wait()


def test_first_run_starts_immediately_and_the_next_one_waits(office: Office) -> None:
    one, two = office.submit(owner="ada", name="first"), office.submit()
    assert office.states(one, two) == ["running", "queued"]
    entry = office.store.entry(one)
    assert (entry.owner, entry.name, entry.device, entry.turn, entry.pid) == ("ada", "first", "cpu", 1, None)
    assert entry.is_active
    for _ in range(3):
        office.tend()
    assert office.started == [one]
    office.release(one, "finished")
    assert office.started == [one, two]
    assert office.states(one, two) == ["finished", "running"]
    assert office.store.entry(two).turn == 2


def test_each_device_trains_one_of_the_queued_runs(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "devices", lambda: ["cuda:0", "cpu"])
    runs = [office.submit(device=device) for device in ("auto", "cuda:0", "cpu", "cuda")]
    runs.append(office.store.add(PRESET, device="cuda:1"))  # it does not exist, so the run goes to the CPU
    assert office.states(*runs) == ["running", "queued", "running", "queued", "queued"]
    office.release(runs[0], "failed")
    office.release(runs[2], "finished")
    assert office.started == [runs[0], runs[2], runs[1], runs[4]]


def test_queued_runs_of_three_owners_alternate_and_a_late_owner_is_next(office: Office) -> None:
    owners = {office.store.add(PRESET, owner=owner): owner for owner in ("ada",) * 4 + ("bob",) * 3 + ("cy",)}
    office.tend()
    while len(office.started) < len(owners):
        if len(office.started) == 6:
            owners[office.store.add(PRESET, owner="dee")] = "dee"
        office.release(office.started[-1], "finished")
    assert [owners[run] for run in office.started] == ["ada", "bob", "cy", "ada", "bob", "ada", "dee", "bob", "ada"]


def test_deleting_finished_runs_does_not_move_an_owner_to_the_front(office: Office) -> None:
    owners = {office.store.add(PRESET, owner=owner): owner for owner in ("bob", "bob", "bob", "ada", "ada", "ada")}
    office.tend()
    while len(office.started) < len(owners):
        last = office.started[-1]
        worker.release(office.store, last, str(office.store.entry(last).worker), "finished", "")
        if owners[last] == "ada":
            office.store.delete(last)
        office.die(last)
    assert [owners[run] for run in office.started] == ["bob", "ada"] * 3


def test_owner_with_a_running_run_waits_behind_an_owner_without() -> None:
    running = waiting(1, "ada", state="running", worker="w", device="cpu", turn=1)
    entries = [running, waiting(2, "ada"), waiting(3, "ada"), waiting(4, "bob")]
    assert [entry.owner for entry in jobs.queue_order(entries)] == ["bob", "ada", "ada"]


def test_queue_position_counts_only_runs_for_the_same_device() -> None:
    people = (("ada", "auto"), ("bob", "cpu"), ("cy", "auto"), ("ada", "auto"), ("dee", "cpu"))
    entries = [waiting(number, owner, wanted=wanted) for number, (owner, wanted) in enumerate(people, start=1)]
    assert [jobs.queue_position(f"run{number}", entries, TWO) for number in range(1, 6)] == [0, 0, 1, 2, 1]
    assert [jobs.queue_position(f"run{number}", entries, ONE) for number in range(1, 6)] == [0, 1, 2, 4, 3]
    assert jobs.queue_position("unknown", entries, TWO) == 0


def test_rejected_run_leaves_nothing(office: Office) -> None:
    with pytest.raises(ConfigError):
        office.submit(tiny_preset(model={"max_len": 3}))
    with pytest.raises(RunStoreError, match=r"The device must be one of auto, cuda, cpu, got 'cuda:7'\."):
        office.submit(device="cuda:7")
    with pytest.raises(RunStoreError, match="This run has 20 steps, and this server allows 5; choose fewer"):
        office.submit(limits=Limits(steps=5))
    assert office.store.entries() == []
    assert not [path for path in office.store.folder.iterdir() if path.is_dir()]


def test_fork_needs_the_same_model_and_leaves_nothing_on_a_full_disk(run: LocalRun, office: Office) -> None:
    run.train()
    with pytest.raises(ConfigError, match="A fork keeps the model's settings"):
        jobs.fork(run.store, run.id, 10, tiny_preset(model={"d_model": 16}))
    with run.monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_with(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(RunStoreError, match="The run could not be saved: No space left"):
            jobs.fork(run.store, run.id, 10, PRESET)
    assert [entry.id for entry in run.store.entries()] == [run.id]
    assert [path.name for path in run.store.folder.iterdir() if path.is_dir()] == [run.id]


def test_run_stays_queued_if_its_worker_cannot_be_started_yet(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes, "spawn", failing_with(OSError(errno.EAGAIN, "Resource temporarily unavailable")))
        run = office.submit()
        with pytest.raises(RunStoreError, match="Resource temporarily unavailable"):
            office.tend()
    assert (office.store.entry(run).state, office.store.entry(run).worker) == ("queued", None)
    assert not liveness.is_held(office.store.folder_of(run) / liveness.LOCK)
    office.tend()
    assert office.started == [run]


def test_run_of_a_dead_worker_is_interrupted(office: Office) -> None:
    run, other = office.submit(), office.submit()
    office.tend()
    assert office.store.entry(run).is_active  # it holds its lock, although it has not reported yet
    office.store.change(run, unreported_starts=0)  # as a worker does with its first report
    office.die(run)
    entry = office.store.entry(run)
    assert (entry.state, entry.worker) == ("interrupted", None)
    assert entry.message.startswith(GONE)
    assert office.started == [run, other]
    jobs.resume(office.store, run)
    assert office.shown(run) == ("queued", "")


def test_worker_that_dies_before_its_first_report_is_replaced_once(office: Office) -> None:
    run, other = office.submit(owner="ada"), office.submit(owner="bob")
    os.close(office.locks.pop(run))
    seen = liveness.with_process_state(office.store, office.store.entry(run))
    assert (seen.state, seen.worker, seen.message) == ("queued", None, liveness.STOPPED_EARLY)
    office.tend()
    assert office.started == [run, run]  # its turn had only begun, so it comes before the other run
    assert office.store.entry(run).is_active
    assert office.shown(run) == ("running", liveness.RESTARTED)
    office.die(run)
    state, message = office.shown(run)
    assert (state, office.store.entry(run).worker) == ("failed", None)
    assert message.startswith(f"{liveness.STOPPED_TWICE} The second worker {liveness.ENDED}")
    assert office.started == [run, run, other]
    jobs.resume(office.store, run)  # resets the count of failed starts
    office.release(other, "finished")
    assert office.shown(run) == ("running", "")
    office.release(run, "queued")  # as a worker that lost its GPU; this resets the count too
    office.die(run)
    assert office.shown(run) == ("running", liveness.RESTARTED)


def test_run_of_a_worker_that_dies_after_a_stop_command_is_stopped(office: Office) -> None:
    run = office.submit()
    jobs.stop(office.store, run)
    office.die(run)
    assert office.shown(run) == ("stopped", UNANSWERED)
    with office.store.database.reading() as db:  # the stop command has been deleted
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0
    jobs.resume(office.store, run)
    office.tend()
    assert office.states(run) == ["running"]


def test_run_waits_for_its_exiting_process_while_other_runs_start(office: Office) -> None:
    one, two = office.submit(), office.submit()
    worker.release(office.store, one, str(office.store.entry(one).worker), "queued", "The GPU was lost.")
    office.tend()  # the lock of the first is still held
    assert office.states(one, two) == ["queued", "running"]
    os.close(office.locks.pop(one))
    office.release(two, "finished")
    assert office.started == [one, two, one]


def test_stop_and_resume_of_runs_without_a_process(office: Office) -> None:
    office.submit()
    for state in ("queued", "paused", "stopped", "finished", "failed", "interrupted"):
        stopped, resumed = (office.store.add(PRESET, name="mine", state=state) for _ in range(2))
        jobs.stop(office.store, stopped)
        assert office.states(stopped) == ["stopped" if state in ("queued", "paused") else state]
        if state == "finished":
            with pytest.raises(RunStoreError, match="The run “mine” is finished: there is nothing left to resume"):
                jobs.resume(office.store, resumed)
            continue
        for _ in range(2):  # the second call finds the run already queued
            jobs.resume(office.store, resumed)
        assert office.states(resumed) == ["queued"]
    assert len(office.started) == 1


def test_dead_and_halted_processes_are_shown_before_reconcile_records_them(office: Office) -> None:
    run, process = office.hang()
    store = office.store
    store.change(run, unreported_starts=0)
    assert liveness.with_process_state(store, store.entry(run)) == store.entry(run)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    halted = liveness.with_process_state(store, store.entry(run))
    assert (halted.state, halted.is_active, halted.message) == ("running", True, liveness.HALTED)
    process.kill()
    process.wait()
    assert store.entry(run).is_active
    seen = liveness.with_process_state(store, store.entry(run))
    assert (seen.state, seen.worker, seen.pid) == ("interrupted", None, None)
    assert seen.message == f"{GONE} Resume continues from the last saved state."
    liveness.mark_dead(store, store.entry(run))
    assert store.entry(run) == seen


def test_process_on_a_full_disk_writes_why_into_its_lock_file(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the message would say that it was killed or ran out of memory."""
    run, process = office.hang()
    lock = os.open(office.store.folder_of(run) / liveness.LOCK, os.O_RDWR)
    full = failing_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with quick_worker(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(worker, "train_one", full)
        patch.setattr(commands.traceback, "print_exception", full)  # the log is on the same disk
        patch.setattr(worker, "release", failing_with(RunStoreError("The run store cannot be used: disk is full.")))
        with pytest.raises(RunStoreError, match="disk is full"):
            worker.work(office.store, run, office.store.entry(run).worker or "", lock)
    os.close(lock)
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "start_next", lambda *_: None)
    words = "The disk is full; everything saved before is intact. Resume continues from the last saved state."
    assert liveness.with_process_state(office.store, office.store.entry(run)).message == words
    office.tend()
    assert office.shown(run) == ("interrupted", words)


def test_resume_queues_a_run_whose_process_has_just_ended(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run, process = office.hang()
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "start_next", lambda *_: None)
    jobs.resume(office.store, run)
    assert office.states(run) == ["queued"]


def later(monkeypatch: pytest.MonkeyPatch, seconds: float, wall: float = 0.0) -> None:
    """Advance the monotonic clock by `seconds`, and the wall clock by `wall`."""
    monotonic, clock = time.monotonic, time.time
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(time, "time", lambda: clock() + wall)


def test_hanging_worker_is_killed_some_seconds_after_a_stop(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run, process = office.hang()
    later(monkeypatch, 1000)
    office.tend()
    assert process.poll() is None  # no stop command was sent
    jobs.stop(office.store, run)
    office.tend()
    assert process.poll() is None  # it may still respond
    later(monkeypatch, liveness.STOP_SECONDS, wall=-3600)  # a wall clock that is set back has no effect
    stale = office.store.entry(run)
    office.store.change(run, worker="another")  # the run gets another worker between the read and the kill
    liveness.mark_dead(office.store, stale)
    assert process.poll() is None
    office.store.change(run, worker=stale.worker)
    office.tend()
    assert process.wait(DEADLINE) == -signal.SIGKILL
    assert office.shown(run) == ("stopped", UNANSWERED)  # recorded in the same call
    assert office.store.entry(run).worker is None


def test_silent_worker_is_replaced_once_before_a_first_report(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "silent_seconds", lambda worker, pid: 6.0)
    run, first = office.hang()
    office.store.change(run, unreported_starts=0)
    office.tend()
    assert first.poll() is None
    office.store.change(run, unreported_starts=1)
    office.tend()
    assert first.wait(DEADLINE) == -signal.SIGKILL
    assert office.shown(run) == ("running", liveness.RESTARTED)
    office.tend()
    state, message = office.shown(run)
    assert state == "failed"
    assert message.startswith(f"{liveness.STOPPED_TWICE} The second worker showed no sign of life for 5 s")


def test_deadline_of_the_first_report_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for value in ("", "12", "0.5", "0", "-1", "nan", "soon"):
        monkeypatch.setenv("XFORMER_FIRST_REPORT_SECONDS", value)
        found[value] = liveness.first_report_seconds()
    assert found == {"": 5.0, "12": 12.0, "0.5": 0.5, "0": 5.0, "-1": 5.0, "nan": 5.0, "soon": 5.0}


def test_limits_hold_for_concurrent_submissions(office: Office) -> None:
    results = at_once(5, lambda: office.submit(owner="ada", limits=Limits(waiting=3)))
    runs = [entry.id for entry in office.store.entries()]
    assert len(runs) == 3
    [one, other] = [result for result in results if result not in runs]
    assert one == other
    assert one.startswith("You have 3 runs waiting or in training, and 3 are")
    assert len(office.started) == 1


def test_deleted_runs_are_removed_after_some_time(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young, kept, restored = (store.add(PRESET, state="stopped") for _ in range(4))
    for run in (old, young, kept, restored):
        store.put_rows(run, [{"step": 1}])
        store.folder_of(run).mkdir(parents=True)
    for run in (old, young, restored):
        store.delete(run)
    for run in (old, restored):
        store.change(run, deleted=time.time() - jobs.UNDELETE_SECONDS - 1)
    stale = store.entries(deleted=True)
    store.undelete(restored)  # a run restored while the bin is emptied stays
    with monkeypatch.context() as patch:
        patch.setattr(store, "entries", lambda deleted: stale)
        jobs.empty_bin(store)
    with pytest.raises(RunStoreError, match="There is no run"):
        store.entry(old)
    assert [len(store.rows(run)) for run in (old, young, kept, restored)] == [0, 1, 1, 1]
    assert [store.folder_of(run).exists() for run in (old, young, kept, restored)] == [False, True, True, True]
    store.undelete(young)
    assert {entry.id for entry in store.entries()} == {young, kept, restored}
