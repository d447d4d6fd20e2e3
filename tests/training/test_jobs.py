"""From the run store to processes: who is started, who is noticed dead, who is killed; and buttons that many press at once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.training.at_work import PRESET, claim, train
from tests.training.test_commands import assert_same_run
from tests.training.tiny import tiny_preset
from xformer.errors import ConfigError, RunStoreError
from xformer.training import commands, jobs, liveness, worker
from xformer.training.entry import Entry
from xformer.training.limits import Limits
from xformer.training.run_store import RunStore, put_command, set_columns

FORK = multiprocessing.get_context("fork")
DEADLINE = 120.0
GONE = "Its process ended without a word: killed, out of memory, or the machine was restarted."
UNANSWERED = "Its process ended before it had answered. Resume goes on from the last state it kept."


class Office:
    """In place of processes: each start is recorded, and the lock is held until the worker dies."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.started: list[str] = []
        self.locks: dict[str, int] = {}

    def spawn(self, folder: Path, store: RunStore, run: str, token: str, lock: int) -> None:
        self.started.append(run)
        self.locks[run] = os.dup(lock)

    def die(self, run: str) -> None:
        os.close(self.locks.pop(run))

    def report(self, run: str) -> None:
        """Write down what a worker does after its first steps."""
        self.store.change(run, unreported_starts=0)

    def leave(self, run: str, state: str) -> None:
        """End as a worker does."""
        worker.leave(self.store, run, str(self.store.entry(run).worker), state, "")
        self.die(run)


@pytest.fixture
def office(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    office = Office(store)
    monkeypatch.setattr(jobs, "_spawn", office.spawn)
    monkeypatch.setattr(jobs, "devices", lambda: ["cpu"])
    yield office
    for run in list(office.locks):
        office.die(run)


def states(store: RunStore, *runs: str) -> list[str]:
    return [store.entry(run).state for run in runs]


def test_the_first_run_starts_at_once_and_the_next_one_waits(store: RunStore, office: Office) -> None:
    one, two = jobs.submit(store, PRESET, owner="ada", name="first"), jobs.submit(store, PRESET)
    assert states(store, one, two) == ["running", "queued"]
    entry = store.entry(one)
    assert (entry.owner, entry.name, entry.device, entry.turn, entry.pid) == ("ada", "first", "cpu", 1, None)
    assert entry.is_active
    for _ in range(3):
        jobs.reconcile(store)
    assert office.started == [one]
    office.leave(one, "finished")
    jobs.reconcile(store)
    assert office.started == [one, two]
    assert states(store, one, two) == ["finished", "running"]
    assert store.entry(two).turn == 2


def test_two_devices(store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "devices", lambda: ["cuda:0", "cpu"])
    runs = [jobs.submit(store, PRESET, device=device) for device in ("auto", "cuda:0", "cpu", "cuda")]
    assert states(store, *runs) == ["running", "queued", "running", "queued"]
    office.leave(runs[0], "failed")
    jobs.reconcile(store)
    assert office.started == [runs[0], runs[2], runs[1]]


def test_deleting_what_is_finished_is_no_way_to_the_front(store: RunStore, office: Office) -> None:
    for _ in range(3):
        jobs.submit(store, PRESET, owner="bob")
    for _ in range(5):
        jobs.submit(store, PRESET, owner="ada")
        office.leave(office.started[-1], "finished")
        for entry in store.entries():
            if entry.state == "finished" and entry.owner == "ada":
                store.delete(entry.id)
        jobs.reconcile(store)
    owners = {entry.id: entry.owner for entry in [*store.entries(), *store.entries(deleted=True)]}
    assert [owners[run] for run in office.started] == ["bob", "ada"] * 3


def test_what_may_not_be_trained_leaves_nothing(store: RunStore, office: Office) -> None:
    misfit = tiny_preset(model={"max_len": 3})
    with pytest.raises(ConfigError):
        jobs.submit(store, misfit)
    with pytest.raises(RunStoreError, match=r"The device must be one of auto, cuda, cpu, got 'cuda:7'\."):
        jobs.submit(store, PRESET, device="cuda:7")
    with pytest.raises(RunStoreError, match="This run has 20 steps, and this server allows 5; choose fewer"):
        jobs.submit(store, PRESET, limits=Limits(steps=5))
    assert store.entries() == []
    assert not [path for path in store.folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EROFS])
def test_a_fork_on_a_full_disk_leaves_nothing(
    store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    parent = store.add(PRESET)
    train(store, parent, monkeypatch)

    def refuse(*_: Any) -> None:
        raise OSError(refusal, os.strerror(refusal))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(RunStoreError, match=f"The run could not be written down: {os.strerror(refusal)}"):
            jobs.fork(store, parent, 10, PRESET)
    assert [entry.id for entry in store.entries()] == [parent]
    assert [path.name for path in store.folder.iterdir() if path.is_dir()] == [parent]


def test_a_fork_keeps_the_shape_of_the_model(store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = store.add(PRESET)
    train(store, parent, monkeypatch)
    with pytest.raises(ConfigError, match="A fork keeps the model's settings"):
        jobs.fork(store, parent, 10, tiny_preset(model={"d_model": 16}))


def test_a_start_that_is_written_down_counts_even_if_the_worker_cannot_be_started_yet(
    store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_spawn", refuse)
        run = jobs.submit(store, PRESET)
        with pytest.raises(RunStoreError, match="Resource temporarily unavailable"):
            jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).worker) == ("queued", None)
    assert not liveness.is_held(store.folder_of(run) / liveness.LOCK)
    jobs.reconcile(store)
    assert office.started == [run]


def test_a_worker_that_is_gone_is_noticed(store: RunStore, office: Office) -> None:
    run, other = jobs.submit(store, PRESET), jobs.submit(store, PRESET)
    jobs.reconcile(store)
    assert store.entry(run).is_active  # it holds its lock, though it has not reported yet
    office.report(run)
    office.die(run)
    jobs.reconcile(store)
    entry = store.entry(run)
    assert (entry.state, entry.worker) == ("interrupted", None)
    assert entry.message.startswith(GONE)
    assert office.started == [run, other]
    jobs.resume(store, run)
    assert (store.entry(run).state, store.entry(run).message) == ("queued", "")


def test_a_worker_that_dies_before_its_first_report_is_replaced_once(store: RunStore, office: Office) -> None:
    run, other = jobs.submit(store, PRESET, owner="ada"), jobs.submit(store, PRESET, owner="bob")
    office.die(run)
    seen = liveness.with_process_state(store, store.entry(run))
    assert (seen.state, seen.worker, seen.message) == ("queued", None, liveness.STOPPED_EARLY)
    jobs.reconcile(store)
    entry = store.entry(run)
    assert office.started == [run, run]  # its turn had only begun, so it goes before the other one
    assert (entry.state, entry.is_active, entry.message) == ("running", True, liveness.RESTARTED)
    office.die(run)
    jobs.reconcile(store)
    entry = store.entry(run)
    assert (entry.state, entry.worker) == ("failed", None)
    assert entry.message.startswith(f"{liveness.STOPPED_TWICE} That one {liveness.ENDED}")
    assert office.started == [run, run, other]
    jobs.resume(store, run)  # and all begins anew
    office.leave(other, "finished")
    jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).message) == ("running", "")
    office.die(run)
    jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).message) == ("running", liveness.RESTARTED)


def test_a_worker_that_leaves_by_itself_has_reported(store: RunStore, office: Office) -> None:
    """A worker that lost its GPU has reported it: the next one is the first of its kind."""
    run = jobs.submit(store, PRESET)
    for _ in range(3):
        office.leave(run, "queued")
        jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).message) == ("running", "")
    office.die(run)
    jobs.reconcile(store)
    assert store.entry(run).message == liveness.RESTARTED


def test_a_worker_that_is_gone_after_a_stop_has_stopped(store: RunStore, office: Office) -> None:
    run = jobs.submit(store, PRESET)
    jobs.stop(store, run)
    office.die(run)
    jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).message) == ("stopped", UNANSWERED)
    with store.database.reading() as db:  # and the old stop is forgotten
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0
    jobs.resume(store, run)
    jobs.reconcile(store)
    assert store.entry(run).state == "running"


def test_a_run_whose_last_process_is_just_leaving_waits_for_it_and_holds_up_nobody(
    store: RunStore, office: Office
) -> None:
    one, two = jobs.submit(store, PRESET), jobs.submit(store, PRESET)
    worker.leave(store, one, str(store.entry(one).worker), "queued", "The GPU was lost.")
    jobs.reconcile(store)  # the lock of the first is still held
    assert states(store, one, two) == ["queued", "running"]
    office.die(one)
    office.leave(two, "finished")
    jobs.reconcile(store)
    assert office.started == [one, two, one]


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ("queued", "stopped"),
        ("paused", "stopped"),
        ("stopped", "stopped"),
        ("finished", "finished"),
        ("failed", "failed"),
    ],
)
def test_stopping_what_has_no_process(store: RunStore, state: str, after: str) -> None:
    run = store.add(PRESET, state=state)
    jobs.stop(store, run)
    assert store.entry(run).state == after


@pytest.mark.parametrize("state", ["queued", "paused", "stopped", "interrupted", "failed"])
def test_resuming_what_has_no_process(store: RunStore, office: Office, state: str) -> None:
    running = jobs.submit(store, PRESET)
    run = store.add(PRESET, state=state)
    for _ in range(2):  # the second press finds it going on already
        jobs.resume(store, run)
    assert states(store, running, run) == ["running", "queued"]


def test_there_is_nothing_to_resume(store: RunStore, office: Office) -> None:
    run = store.add(PRESET, name="mine", state="finished")
    with pytest.raises(RunStoreError, match="The run “mine” is finished: there is nothing left to resume"):
        jobs.resume(store, run)


def test_what_was_deleted_is_not_resumed_behind_ones_back(store: RunStore, office: Office) -> None:
    run = store.add(PRESET, name="mine", state="stopped")
    store.delete(run)
    with pytest.raises(RunStoreError, match="The run “mine” was deleted; take it back before you resume it"):
        jobs.resume(store, run)
    store.undelete(run)
    jobs.reconcile(store)
    assert store.entry(run).state == "stopped"
    assert office.started == []


def holding(lock: int) -> subprocess.Popen[bytes]:
    """A process that holds a lock and ignores commands."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.fixture
def hanging(
    store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], tuple[str, Any]]]:
    """A run whose worker hangs, from its very beginning."""
    processes = []

    def spawn(folder: Path, store: RunStore, run: str, token: str, lock: int) -> None:
        processes.append(holding(lock))
        liveness.sign(lock, processes[-1].pid)

    def start() -> tuple[str, Any]:
        monkeypatch.setattr(jobs, "_spawn", spawn)
        return jobs.submit(store, PRESET), processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_is_told_at_once_also_where_the_book_cannot_be_written(
    store: RunStore, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    store.change(run, unreported_starts=0)
    assert liveness.with_process_state(store, store.entry(run)) == store.entry(run)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    halted = liveness.with_process_state(store, store.entry(run))
    assert (halted.state, halted.is_active, halted.message) == ("running", True, liveness.HALTED)
    process.kill()
    process.wait()
    assert store.entry(run).is_active  # before the first round of the queue
    seen = liveness.with_process_state(store, store.entry(run))
    assert (seen.state, seen.worker, seen.pid) == ("interrupted", None, None)
    assert seen.message == f"{GONE} Resume goes on from the last state it kept."
    with store.database.writing() as db:
        put_command(db, run, "stop")
    seen = liveness.with_process_state(store, store.entry(run))
    assert (seen.state, seen.message.split(".")[0]) == ("stopped", "Its process ended before it had answered")
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    jobs.reconcile(store)
    assert store.entry(run) == seen


def test_a_process_that_could_write_nowhere_else_leaves_its_reason_in_the_lock(
    store: RunStore, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not called “killed, out of memory”."""
    run, process = hanging()
    lock = os.open(store.folder_of(run) / liveness.LOCK, os.O_RDWR)
    entry = store.entry(run)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_train", full)
        patch.setattr(commands.traceback, "print_exception", full)  # the log is on the same disk
        patch.setattr(worker, "lower_priority", lambda entry: None)
        patch.setattr(worker.signal, "signal", lambda *_: None)
        patch.setattr(worker, "leave", failing_book)
        with pytest.raises(RunStoreError, match="disk is full"):
            worker.work(store, run, entry.worker or "", lock)
    os.close(lock)
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    words = "The disk is full; what was kept before is whole. Resume goes on from the last state it kept."
    assert liveness.with_process_state(store, store.entry(run)).message == words
    jobs.reconcile(store)
    assert (store.entry(run).state, store.entry(run).message) == ("interrupted", words)


def failing_book(*_: Any, **__: Any) -> None:
    raise RunStoreError("The book of runs (runs.sqlite) cannot be used: database or disk is full.")


def test_resume_is_not_told_to_a_process_that_has_just_ended(
    store: RunStore, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    jobs.resume(store, run)
    assert store.entry(run).state == "queued"


def later(monkeypatch: pytest.MonkeyPatch, seconds: float, wall: float = 0.0) -> None:
    """So many seconds later; the clock on the wall says something else."""
    monotonic, clock = time.monotonic, time.time
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(time, "time", lambda: clock() + wall)


def test_a_worker_that_hangs_is_killed_some_seconds_after_a_stop(
    store: RunStore, hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    later(monkeypatch, 1000)
    jobs.reconcile(store)
    assert process.poll() is None  # it got no order to stop
    jobs.stop(store, run)
    jobs.reconcile(store)
    assert process.poll() is None  # it may still obey
    later(monkeypatch, liveness.STOP_SECONDS, wall=-3600)  # a clock that was set back changes nothing
    jobs.reconcile(store)
    assert process.wait(DEADLINE) == -signal.SIGKILL
    entry = store.entry(run)
    assert (entry.state, entry.worker, entry.message) == ("stopped", None, UNANSWERED)  # in that very moment


def test_a_worker_without_a_sign_of_life_is_replaced_once(
    store: RunStore, hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_FIRST_REPORT_SECONDS", "0.1")
    run, first = hanging()
    entry = wait_until(store, run, lambda entry: entry.unreported_starts == 2)
    assert first.wait(DEADLINE) == -signal.SIGKILL
    assert (entry.state, entry.message) == ("running", liveness.RESTARTED)
    entry = wait_until(store, run, lambda entry: not entry.is_active)
    assert entry.state == "failed"
    assert entry.message.startswith(f"{liveness.STOPPED_TWICE} That one showed no sign of life for 0.1 s")


def test_a_worker_is_silent_only_before_its_first_report(
    store: RunStore, hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_FIRST_REPORT_SECONDS", "0.1")
    run, process = hanging()
    store.change(run, unreported_starts=0)
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(10):
        jobs.reconcile(store)
        later(monkeypatch, 1)
    assert process.poll() is None
    assert store.entry(run).is_active


@pytest.mark.parametrize(
    ("asked", "seconds"), [("", 5.0), ("12", 12.0), ("0.5", 0.5), ("0", 5.0), ("-1", 5.0), ("nan", 5.0), ("soon", 5.0)]
)
def test_the_deadline_of_the_first_report(monkeypatch: pytest.MonkeyPatch, asked: str, seconds: float) -> None:
    monkeypatch.setenv("XFORMER_FIRST_REPORT_SECONDS", asked)
    assert liveness.first_report_seconds() == seconds


def test_nobody_is_killed_who_has_the_run_since(store: RunStore, hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at the runs and killing, the run got another worker."""
    run, process = hanging()
    jobs.stop(store, run)
    later(monkeypatch, liveness.STOP_SECONDS)
    stale = store.entry(run)
    with store.database.writing() as db:
        set_columns(db, run, worker="another")
    liveness.mark_dead(store, stale)
    assert process.poll() is None
    assert store.entry(run).worker == "another"


@contextmanager
def at_once(n: int, do: Callable[[int], Any]) -> Iterator[list[Any]]:
    """What `do(0)`, `do(1)`, … return or raise, each in a process of its own, all at the same moment; they live on."""
    start, end, answers = FORK.Barrier(n), FORK.Event(), FORK.SimpleQueue()

    def work(number: int) -> None:
        start.wait()
        try:
            answers.put((number, do(number)))
        except Exception as error:
            answers.put((number, f"{type(error).__name__}: {error}"))
        end.wait(DEADLINE)

    processes = [FORK.Process(target=work, args=(number,)) for number in range(n)]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get() for _ in processes)
        yield [found[number] for number in range(n)]
    finally:
        end.set()
        for process in processes:
            process.join(DEADLINE)


@pytest.fixture
def started(store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Workers are started by several processes: each start is a line of this file; its process holds the lock."""
    file = tmp_path / "started"
    file.touch()

    def spawn(folder: Path, store: RunStore, run: str, token: str, lock: int) -> None:
        os.dup(lock)
        with open(file, "a") as lines:
            lines.write(f"{run}\n")

    monkeypatch.setattr(jobs, "_spawn", spawn)
    monkeypatch.setattr(jobs, "devices", lambda: ["cpu"])
    return file


def test_five_servers_that_tend_at_once_start_one_worker(store: RunStore, started: Path) -> None:
    runs = [store.add(PRESET) for _ in range(3)]
    with at_once(5, lambda _: [jobs.reconcile(store) for _ in range(4)]) as answers:
        assert answers == [[None] * 4] * 5
        assert started.read_text().split() == runs[:1]
        assert states(store, *runs) == ["running", "queued", "queued"]


def test_five_tabs_that_press_start_at_once_share_what_is_allowed(store: RunStore, started: Path) -> None:
    limits = Limits(waiting=3)
    with at_once(5, lambda _: jobs.submit(store, PRESET, owner="ada", limits=limits)) as answers:
        runs = [entry.id for entry in store.entries()]
        assert len(runs) == 3
        refused = [answer for answer in answers if answer not in runs]
        assert len(refused) == 2
        assert all(
            answer.startswith("RunStoreError: You have 3 runs waiting or in training, and 3 are") for answer in refused
        )
        assert len(started.read_text().split()) == 1


def test_five_tabs_that_press_resume_at_once_resume_it_once(store: RunStore, started: Path) -> None:
    run = store.add(PRESET, state="interrupted")
    with at_once(5, lambda _: jobs.resume(store, run)) as answers:
        assert answers == [None] * 5
        assert started.read_text().split() == [run]
        assert store.entry(run).state == "running"


def test_stop_and_resume_pressed_at_once_leave_one_of_both(store: RunStore, started: Path) -> None:
    run = store.add(PRESET, state="paused")
    with at_once(4, lambda number: (jobs.stop if number % 2 else jobs.resume)(store, run)) as answers:
        assert answers == [None] * 4
        entry = store.entry(run)
        assert (entry.state, entry.is_active) in [("running", True), ("stopped", False), ("queued", False)]
        assert started.read_text().split() in ([], [run])


def test_five_servers_that_notice_a_death_at_once_bury_it_once(store: RunStore, started: Path) -> None:
    run = store.add(PRESET)
    claim(store, run)
    with at_once(5, lambda _: jobs.reconcile(store)) as answers:
        assert answers == [None] * 5
        assert store.entry(run).state == "interrupted"
        assert started.read_text() == ""


def test_the_bin(store: RunStore, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young, kept = (store.add(PRESET, state="stopped") for _ in range(3))
    for run in (old, young, kept):
        store.put_rows(run, [{"step": 1}])
        store.folder_of(run).mkdir(parents=True)
    store.delete(old)
    store.change(old, deleted=time.time() - jobs.UNDELETE_SECONDS - 1)
    store.delete(young)
    jobs.empty_bin(store)
    with pytest.raises(RunStoreError, match="There is no run"):
        store.entry(old)
    assert store.rows(old) == []
    assert [store.folder_of(run).exists() for run in (old, young, kept)] == [False, True, True]
    store.undelete(young)
    assert {entry.id for entry in store.entries()} == {young, kept}


def test_what_is_taken_back_while_the_bin_is_emptied_stays(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.add(PRESET, state="stopped")
    store.folder_of(run).mkdir(parents=True)
    store.delete(run)
    store.change(run, deleted=1.0)
    stale = store.entries(deleted=True)
    store.undelete(run)
    monkeypatch.setattr(store, "entries", lambda deleted: stale)
    jobs.empty_bin(store)
    assert store.entry(run).id == run
    assert store.folder_of(run).exists()


# From here on with processes as a server starts them.


def wait_until(store: RunStore, run: str, holds: Callable[[Entry], bool]) -> Entry:
    """Tend until something holds of a run."""
    deadline = time.monotonic() + DEADLINE
    while True:
        jobs.reconcile(store)
        entry = store.entry(run)
        if holds(entry):
            return entry
        assert time.monotonic() < deadline, entry
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    """Whether a process is there, be it as a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_a_process_that_is_killed_and_one_that_goes_on(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detached, with the lock, seen dead at once, no zombie; resumed it ends in the same bits."""
    settings = tiny_preset(steps=1_500, log_every=500, snapshot_every=30)
    run = jobs.submit(store, settings)
    lock = store.folder_of(run) / liveness.LOCK
    pid = liveness.holder(lock)
    assert pid is not None
    assert liveness.is_held(lock)
    assert os.getsid(pid) == pid != os.getsid(0)
    entry = wait_until(store, run, lambda entry: entry.step > 60)
    assert (entry.state, entry.pid) == ("running", pid)
    os.kill(pid, signal.SIGKILL)
    entry = wait_until(store, run, lambda entry: not entry.is_active)
    assert entry.state == "interrupted"
    assert entry.message.startswith(GONE)
    jobs.resume(store, run)
    wait_until(store, run, lambda entry: entry.state == "finished")
    deadline = time.monotonic() + DEADLINE
    while is_there(pid) or is_there(int(liveness.holder(lock) or 0)):
        assert time.monotonic() < deadline, "a process is left, or its zombie"
        time.sleep(0.05)
    other = jobs.submit(store, settings)
    wait_until(store, other, lambda entry: entry.state == "finished")
    assert_same_run(store, run, other)
