"""From the book to processes: who is started, who is noticed dead, who is killed; and buttons that many press at once."""

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
from tests.training.test_obedience import assert_same_run
from tests.training.tiny import tiny_preset
from xformer.errors import BookError, ConfigError
from xformer.training import jobs, liveness, queue, worker
from xformer.training.book import Book, Entry, put_command, set_columns
from xformer.training.limits import Limits

FORK = multiprocessing.get_context("fork")
DEADLINE = 120.0
GONE = "Its process ended without a word: killed, out of memory, or the machine was restarted."
UNANSWERED = "Its process ended before it had answered. Resume goes on from the last state it kept."


class Office:
    """In place of processes: each start is written down, and the lock is held until the worker is said to die."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.started: list[str] = []
        self.locks: dict[str, int] = {}

    def spawn(self, folder: Path, book: Book, run: str, token: str, lock: int) -> None:
        self.started.append(run)
        self.locks[run] = os.dup(lock)

    def die(self, run: str) -> None:
        os.close(self.locks.pop(run))

    def leave(self, run: str, state: str) -> None:
        """End as a worker does."""
        worker.leave(self.book, run, str(self.book.entry(run).worker), state, "")
        self.die(run)


@pytest.fixture
def office(book: Book, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    office = Office(book)
    monkeypatch.setattr(jobs, "_spawn", office.spawn)
    monkeypatch.setattr(queue, "devices", lambda: ["cpu"])
    yield office
    for run in list(office.locks):
        office.die(run)


def states(book: Book, *runs: str) -> list[str]:
    return [book.entry(run).state for run in runs]


def test_the_first_run_starts_at_once_and_the_next_one_waits(book: Book, office: Office) -> None:
    one, two = jobs.submit(book, PRESET, owner="ada", name="first"), jobs.submit(book, PRESET)
    assert states(book, one, two) == ["running", "queued"]
    entry = book.entry(one)
    assert (entry.owner, entry.name, entry.device, entry.turn, entry.pid) == ("ada", "first", "cpu", 1, None)
    assert entry.is_active
    for _ in range(3):
        jobs.tend(book)
    assert office.started == [one]
    office.leave(one, "finished")
    jobs.tend(book)
    assert office.started == [one, two]
    assert states(book, one, two) == ["finished", "running"]
    assert book.entry(two).turn == 2


def test_two_devices(book: Book, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "devices", lambda: ["cuda:0", "cpu"])
    runs = [jobs.submit(book, PRESET, device=device) for device in ("auto", "cuda:0", "cpu", "cuda")]
    assert states(book, *runs) == ["running", "queued", "running", "queued"]
    office.leave(runs[0], "failed")
    jobs.tend(book)
    assert office.started == [runs[0], runs[2], runs[1]]


def test_deleting_what_is_finished_is_no_way_to_the_front(book: Book, office: Office) -> None:
    for _ in range(3):
        jobs.submit(book, PRESET, owner="bob")
    for _ in range(5):
        jobs.submit(book, PRESET, owner="ada")
        office.leave(office.started[-1], "finished")
        for entry in book.entries():
            if entry.state == "finished" and entry.owner == "ada":
                book.delete(entry.id)
        jobs.tend(book)
    owners = {entry.id: entry.owner for entry in [*book.entries(), *book.entries(deleted=True)]}
    assert [owners[run] for run in office.started] == ["bob", "ada"] * 3


def test_what_may_not_be_trained_leaves_nothing(book: Book, office: Office) -> None:
    misfit = tiny_preset(model={"max_len": 3})
    with pytest.raises(ConfigError):
        jobs.submit(book, misfit)
    with pytest.raises(BookError, match=r"The device must be one of auto, cuda, cpu, got 'cuda:7'\."):
        jobs.submit(book, PRESET, device="cuda:7")
    with pytest.raises(BookError, match="This run has 20 steps, and this server allows 5; choose fewer"):
        jobs.submit(book, PRESET, limits=Limits(steps=5))
    assert book.entries() == []
    assert not [path for path in book.folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EROFS])
def test_a_fork_on_a_full_disk_leaves_nothing(
    book: Book, office: Office, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    parent = book.add(PRESET)
    train(book, parent, monkeypatch)

    def refuse(*_: Any) -> None:
        raise OSError(refusal, os.strerror(refusal))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(BookError, match=f"The run could not be written down: {os.strerror(refusal)}"):
            jobs.fork(book, parent, 10, PRESET)
    assert [entry.id for entry in book.entries()] == [parent]
    assert [path.name for path in book.folder.iterdir() if path.is_dir()] == [parent]


def test_a_fork_keeps_the_shape_of_the_model(book: Book, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = book.add(PRESET)
    train(book, parent, monkeypatch)
    with pytest.raises(ConfigError, match="A fork keeps the model's settings"):
        jobs.fork(book, parent, 10, tiny_preset(model={"d_model": 16}))


def test_a_start_that_is_written_down_counts_even_if_the_worker_cannot_be_started_yet(
    book: Book, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_spawn", refuse)
        run = jobs.submit(book, PRESET)
        with pytest.raises(BookError, match="Resource temporarily unavailable"):
            jobs.tend(book)
    assert (book.entry(run).state, book.entry(run).worker) == ("queued", None)
    assert not liveness.is_held(book.folder_of(run) / jobs.LOCK)
    jobs.tend(book)
    assert office.started == [run]


def test_a_worker_that_is_gone_is_noticed(book: Book, office: Office) -> None:
    run, other = jobs.submit(book, PRESET), jobs.submit(book, PRESET)
    jobs.tend(book)
    assert book.entry(run).is_active  # it holds its lock, though it has not said anything yet
    office.die(run)
    jobs.tend(book)
    entry = book.entry(run)
    assert (entry.state, entry.worker) == ("interrupted", None)
    assert entry.message.startswith(GONE)
    assert office.started == [run, other]
    jobs.resume(book, run)
    assert (book.entry(run).state, book.entry(run).message) == ("queued", "")


def test_a_worker_that_is_gone_after_a_stop_has_stopped(book: Book, office: Office) -> None:
    run = jobs.submit(book, PRESET)
    jobs.stop(book, run)
    office.die(run)
    jobs.tend(book)
    assert (book.entry(run).state, book.entry(run).message) == ("stopped", UNANSWERED)
    with book.database.reading() as db:  # and the old stop is forgotten
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0
    jobs.resume(book, run)
    jobs.tend(book)
    assert book.entry(run).state == "running"


def test_a_run_whose_last_process_is_just_leaving_waits_for_it_and_holds_up_nobody(book: Book, office: Office) -> None:
    one, two = jobs.submit(book, PRESET), jobs.submit(book, PRESET)
    worker.leave(book, one, str(book.entry(one).worker), "queued", "The GPU was lost.")
    jobs.tend(book)  # the lock of the first is still held
    assert states(book, one, two) == ["queued", "running"]
    office.die(one)
    office.leave(two, "finished")
    jobs.tend(book)
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
def test_stopping_what_has_no_process(book: Book, state: str, after: str) -> None:
    run = book.add(PRESET, state=state)
    jobs.stop(book, run)
    assert book.entry(run).state == after


@pytest.mark.parametrize("state", ["queued", "paused", "stopped", "interrupted", "failed"])
def test_resuming_what_has_no_process(book: Book, office: Office, state: str) -> None:
    running = jobs.submit(book, PRESET)
    run = book.add(PRESET, state=state)
    for _ in range(2):  # the second press finds it going on already
        jobs.resume(book, run)
    assert states(book, running, run) == ["running", "queued"]


def test_there_is_nothing_to_resume(book: Book, office: Office) -> None:
    run = book.add(PRESET, name="mine", state="finished")
    with pytest.raises(BookError, match="The run “mine” is finished: there is nothing left to resume"):
        jobs.resume(book, run)


def test_what_was_deleted_is_not_resumed_behind_ones_back(book: Book, office: Office) -> None:
    run = book.add(PRESET, name="mine", state="stopped")
    book.delete(run)
    with pytest.raises(BookError, match="The run “mine” was deleted; take it back before you resume it"):
        jobs.resume(book, run)
    book.undelete(run)
    jobs.tend(book)
    assert book.entry(run).state == "stopped"
    assert office.started == []


def holding(lock: int) -> subprocess.Popen[bytes]:
    """A process that holds a lock and does nothing, whatever it is told."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.fixture
def hanging(book: Book, office: Office, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[str, Any]]]:
    """A run whose worker hangs, from its very beginning."""
    processes = []

    def spawn(folder: Path, book: Book, run: str, token: str, lock: int) -> None:
        processes.append(holding(lock))
        liveness.sign(lock, processes[-1].pid)

    def start() -> tuple[str, Any]:
        monkeypatch.setattr(jobs, "_spawn", spawn)
        return jobs.submit(book, PRESET), processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_is_told_at_once_also_where_the_book_cannot_be_written(
    book: Book, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    assert jobs.as_it_is(book, book.entry(run)) == book.entry(run)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    halted = jobs.as_it_is(book, book.entry(run))
    assert (halted.state, halted.is_active, halted.message) == ("running", True, jobs.HALTED)
    process.kill()
    process.wait()
    assert book.entry(run).is_active  # nobody has tended it yet
    seen = jobs.as_it_is(book, book.entry(run))
    assert (seen.state, seen.worker, seen.pid) == ("interrupted", None, None)
    assert seen.message == f"{GONE} Resume goes on from the last state it kept."
    with book.database.writing() as db:
        put_command(db, run, "stop")
    seen = jobs.as_it_is(book, book.entry(run))
    assert (seen.state, seen.message.split(".")[0]) == ("stopped", "Its process ended before it had answered")
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    jobs.tend(book)
    assert book.entry(run) == seen


def test_a_process_that_could_write_nowhere_else_leaves_its_reason_in_the_lock(
    book: Book, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not called “killed, out of memory”."""
    run, process = hanging()
    lock = os.open(book.folder_of(run) / jobs.LOCK, os.O_RDWR)
    entry = book.entry(run)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_train", full)
        patch.setattr(worker.traceback, "print_exc", full)  # the log is on the same disk
        patch.setattr(worker, "step_back", lambda: None)
        patch.setattr(worker.signal, "signal", lambda *_: None)
        patch.setattr(worker, "leave", failing_book)
        with pytest.raises(BookError, match="disk is full"):
            worker.work(book, run, entry.worker or "", lock)
    os.close(lock)
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    words = "The disk is full; what was kept before is whole. Resume goes on from the last state it kept."
    assert jobs.as_it_is(book, book.entry(run)).message == words
    jobs.tend(book)
    assert (book.entry(run).state, book.entry(run).message) == ("interrupted", words)


def failing_book(*_: Any, **__: Any) -> None:
    raise BookError("The book of runs (runs.sqlite) cannot be used: database or disk is full.")


def test_resume_is_not_told_to_a_process_that_has_just_ended(
    book: Book, hanging: Callable[[], tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    process.kill()
    process.wait()
    monkeypatch.setattr(jobs, "_start_next", lambda *_: None)
    jobs.resume(book, run)
    assert book.entry(run).state == "queued"


def later(monkeypatch: pytest.MonkeyPatch, seconds: float, wall: float = 0.0) -> None:
    """So many seconds later; the clock on the wall says something else."""
    monotonic, clock = time.monotonic, time.time
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(time, "time", lambda: clock() + wall)


def test_a_worker_that_hangs_is_killed_some_seconds_after_a_stop(
    book: Book, hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = hanging()
    later(monkeypatch, 1000)
    jobs.tend(book)
    assert process.poll() is None  # nobody has told it to stop
    jobs.stop(book, run)
    jobs.tend(book)
    assert process.poll() is None  # it may still obey
    later(monkeypatch, jobs.PATIENCE, wall=-3600)  # a clock that was set back changes nothing
    jobs.tend(book)
    assert process.wait(DEADLINE) == -signal.SIGKILL
    entry = book.entry(run)
    assert (entry.state, entry.worker, entry.message) == ("stopped", None, UNANSWERED)  # in that very moment


def test_a_clock_set_forward_kills_nobody(book: Book, hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, process = hanging()
    jobs.stop(book, run)
    later(monkeypatch, 0, wall=+3600)
    jobs.tend(book)
    assert process.poll() is None
    assert book.entry(run).is_active


def test_nobody_is_killed_who_has_the_run_since(book: Book, hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at the runs and killing, the run got another worker."""
    run, process = hanging()
    jobs.stop(book, run)
    later(monkeypatch, jobs.PATIENCE)
    stale = book.entry(run)
    with book.database.writing() as db:
        set_columns(db, run, worker="another")
    jobs._bury(book, stale)
    assert process.poll() is None
    assert book.entry(run).worker == "another"


def test_a_stop_takes_at_most_five_seconds() -> None:
    from pages.shared.desk import TEND_SECONDS

    assert TEND_SECONDS + jobs.PATIENCE + jobs.LAST_MOMENTS < 5


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
def started(book: Book, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Workers are started by several processes: each start is a line of this file; whoever started one holds its lock."""
    file = tmp_path / "started"
    file.touch()

    def spawn(folder: Path, book: Book, run: str, token: str, lock: int) -> None:
        os.dup(lock)
        with open(file, "a") as lines:
            lines.write(f"{run}\n")

    monkeypatch.setattr(jobs, "_spawn", spawn)
    monkeypatch.setattr(queue, "devices", lambda: ["cpu"])
    return file


def test_five_servers_that_tend_at_once_start_one_worker(book: Book, started: Path) -> None:
    runs = [book.add(PRESET) for _ in range(3)]
    with at_once(5, lambda _: [jobs.tend(book) for _ in range(4)]) as answers:
        assert answers == [[None] * 4] * 5
        assert started.read_text().split() == runs[:1]
        assert states(book, *runs) == ["running", "queued", "queued"]


def test_five_tabs_that_press_start_at_once_share_what_is_allowed(book: Book, started: Path) -> None:
    limits = Limits(waiting=3)
    with at_once(5, lambda _: jobs.submit(book, PRESET, owner="ada", limits=limits)) as answers:
        runs = [entry.id for entry in book.entries()]
        assert len(runs) == 3
        refused = [answer for answer in answers if answer not in runs]
        assert len(refused) == 2
        assert all(
            answer.startswith("BookError: You have 3 runs waiting or in training, and 3 are") for answer in refused
        )
        assert len(started.read_text().split()) == 1


def test_five_tabs_that_press_resume_at_once_resume_it_once(book: Book, started: Path) -> None:
    run = book.add(PRESET, state="interrupted")
    with at_once(5, lambda _: jobs.resume(book, run)) as answers:
        assert answers == [None] * 5
        assert started.read_text().split() == [run]
        assert book.entry(run).state == "running"


def test_stop_and_resume_pressed_at_once_leave_one_of_both(book: Book, started: Path) -> None:
    run = book.add(PRESET, state="paused")
    with at_once(4, lambda number: (jobs.stop if number % 2 else jobs.resume)(book, run)) as answers:
        assert answers == [None] * 4
        entry = book.entry(run)
        assert (entry.state, entry.is_active) in [("running", True), ("stopped", False), ("queued", False)]
        assert started.read_text().split() in ([], [run])


def test_five_servers_that_notice_a_death_at_once_bury_it_once(book: Book, started: Path) -> None:
    run = book.add(PRESET)
    claim(book, run)
    with at_once(5, lambda _: jobs.tend(book)) as answers:
        assert answers == [None] * 5
        assert book.entry(run).state == "interrupted"
        assert started.read_text() == ""


def test_the_bin(book: Book, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young, kept = (book.add(PRESET, state="stopped") for _ in range(3))
    for run in (old, young, kept):
        book.put_rows(run, [{"step": 1}])
        book.folder_of(run).mkdir(parents=True)
    book.delete(old)
    book.change(old, deleted=time.time() - jobs.BIN_SECONDS - 1)
    book.delete(young)
    jobs.empty_bin(book)
    with pytest.raises(BookError, match="There is no run"):
        book.entry(old)
    assert book.rows(old) == []
    assert [book.folder_of(run).exists() for run in (old, young, kept)] == [False, True, True]
    book.undelete(young)
    assert {entry.id for entry in book.entries()} == {young, kept}


def test_what_is_taken_back_while_the_bin_is_emptied_stays(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = book.add(PRESET, state="stopped")
    book.folder_of(run).mkdir(parents=True)
    book.delete(run)
    book.change(run, deleted=1.0)
    stale = book.entries(deleted=True)
    book.undelete(run)
    monkeypatch.setattr(book, "entries", lambda deleted: stale)
    jobs.empty_bin(book)
    assert book.entry(run).id == run
    assert book.folder_of(run).exists()


# From here on with processes as a server starts them.


def wait_until(book: Book, run: str, holds: Callable[[Entry], bool]) -> Entry:
    """Tend until something holds of a run."""
    deadline = time.monotonic() + DEADLINE
    while True:
        jobs.tend(book)
        entry = book.entry(run)
        if holds(entry):
            return entry
        assert time.monotonic() < deadline, entry
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    """Whether a process is there, be it as a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_a_process_that_is_killed_and_one_that_goes_on(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detached, with the lock, seen dead at once, no zombie; resumed it ends in the same bits."""
    settings = tiny_preset(steps=1500, log_every=100, snapshot_every=30)
    run = jobs.submit(book, settings)
    lock = book.folder_of(run) / jobs.LOCK
    pid = liveness.holder(lock)
    assert pid is not None
    assert liveness.is_held(lock)
    assert os.getsid(pid) == pid != os.getsid(0)
    entry = wait_until(book, run, lambda entry: entry.step > 60)
    assert (entry.state, entry.pid) == ("running", pid)
    os.kill(pid, signal.SIGKILL)
    entry = wait_until(book, run, lambda entry: not entry.is_active)
    assert entry.state == "interrupted"
    assert entry.message.startswith(GONE)
    jobs.resume(book, run)
    wait_until(book, run, lambda entry: entry.state == "finished")
    deadline = time.monotonic() + DEADLINE
    while is_there(pid) or is_there(int(liveness.holder(lock) or 0)):
        assert time.monotonic() < deadline, "a process is left, or its zombie"
        time.sleep(0.05)
    other = jobs.submit(book, settings)
    wait_until(book, other, lambda entry: entry.state == "finished")
    assert_same_run(book, run, other)
