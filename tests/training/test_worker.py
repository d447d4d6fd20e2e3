"""A worker: however it stops, the run's state has the reason in one sentence; it never touches another worker's run."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import PRESET, add, claim, happenings, resume_here, train
from tests.training.test_commands import assert_same_run, undisturbed
from tests.training.tiny import tiny_preset
from xformer.checkpoints import FILE, load, save
from xformer.errors import RunStoreError
from xformer.paths import STATE, snapshot_file, snapshot_steps
from xformer.training import commands, jobs, worker
from xformer.training.entry import Entry
from xformer.training.loop import read_state
from xformer.training.run_store import RunStore, entry_of, move


def failing_with(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


def assert_goes_on(store: RunStore, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed, it ends like a run that nothing happened to."""
    entry = resume_here(store, run, monkeypatch)
    assert entry.state == "finished", entry.message
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_run_from_its_start_to_its_end(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    entry = train(store, run, monkeypatch)
    assert (entry.state, entry.step, entry.worker, entry.pid, entry.message) == ("finished", 20, None, None, "")
    assert set(entry.live) == {"loss", "gradient_norm", "learning_rate", "steps_per_second"}
    assert [row["step"] for row in store.rows(run)] == [5, 10, 15, 20]
    assert entry.seconds == store.rows(run)[-1]["seconds"]
    assert entry.figures == load(store.folder_of(run)).card["figures"]
    assert entry.figures["samples"] == 20
    assert snapshot_steps(store.folder_of(run)) == [0, 10, 20]


def test_a_worker_that_was_not_given_the_run_leaves_it_alone(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    with happenings(monkeypatch):
        worker.work(store, run, "a token from elsewhere")
        assert store.entry(run).state == "queued"
        claim(store, run)
        worker.work(store, run, "a token from elsewhere")
    assert (store.entry(run).state, store.entry(run).worker) == ("running", "token")
    assert not store.folder_of(run).exists()


def test_a_worker_that_is_quicker_than_the_transaction_it_was_started_in(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = add(store), threading.Event()

    def start_slowly() -> None:
        with store.database.writing() as db:
            move(db, entry_of(db, run), "running", device="cpu", worker="token", pid=None)
            begun.set()
            time.sleep(0.2)

    starter = threading.Thread(target=start_slowly)
    with happenings(monkeypatch):
        starter.start()
        begun.wait()
        worker.work(store, run, "token")
    starter.join()
    assert store.entry(run).state == "finished"


def test_leaving_a_run_that_is_another_processs(store: RunStore) -> None:
    run = add(store)
    claim(store, run)
    worker.leave(store, run, "a token from elsewhere", "finished", "")
    assert store.entry(run).state == "running"


ERRORS = [
    (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        "The disk is full; what was kept before is whole. Resume goes on from there.",
    ),
    (OSError("odd"), "A file could not be written (odd); what was kept"),
    (MemoryError(), "It ran out of memory at step 12; try a smaller batch (it was 4, try 1) or a smaller model."),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        "It ran out of memory at step 12; try a smaller batch",
    ),
    (torch.OutOfMemoryError("of this processor"), "It ran out of memory at step 12; try a smaller batch"),
    (RuntimeError("unsupported memory format option"), "It failed for a reason of its own (RuntimeError)."),
    (RuntimeError("shapes do not fit"), "It failed for a reason of its own (RuntimeError)."),
    (KeyError("surprise"), "It failed for a reason of its own (KeyError)."),
    (AssertionError(), "It failed for a reason of its own (AssertionError)."),
    (RunStoreError("The book of runs is odd."), "The book of runs is odd."),
]


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=lambda value: type(value).__name__)
def test_whatever_goes_wrong_is_said_in_a_sentence(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    run = add(store)
    entry = train(store, run, monkeypatch, at={12: failing_with(error)})
    assert (entry.state, entry.worker) == ("failed", None)
    assert entry.message.startswith(message)
    assert "\n" not in entry.message
    assert read_state(store.folder_of(run)).values["step"] == 10
    assert_goes_on(store, run, monkeypatch)


def test_a_huge_learning_rate_is_a_sentence_and_its_figures_are_kept(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(store, tiny_preset(steps=200, lr_changes=((8, 1e9),), log_every=1, snapshot_every=1, clip_norm=0.0))
    with happenings(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(commands, "WRITE_SECONDS", 1e9)  # all of it happens before the next writing is due
        worker.work(store, run, claim(store, run))
    entry = store.entry(run)
    assert entry.state == "failed"
    assert "the run stops; try a smaller one, for example" in entry.message
    assert f"at step {entry.step}, at a learning rate of" in entry.message
    assert 8 <= entry.step < 200
    assert [row["step"] for row in store.rows(run)] == list(range(1, entry.step))  # up to the last finite ones
    last = snapshot_steps(store.folder_of(run))[-1]
    assert last >= 0
    load(snapshot_file(store.folder_of(run), last))  # which refuses weights that are no numbers
    assert all(bool(one.isfinite().all()) for one in read_state(store.folder_of(run)).tensors.values())
    json.dumps([entry.live, store.rows(run)], allow_nan=False)


def test_a_run_that_was_killed_between_its_end_and_saying_so(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, finish = add(store), worker._finish
    monkeypatch.setattr(worker, "_finish", lambda *_: failing_with(SystemExit())())
    monkeypatch.setattr(worker.CommandLoop, "flush", lambda _: None)  # and before it could write its last figures down
    with pytest.raises(SystemExit):
        train(store, run, monkeypatch)
    monkeypatch.undo()
    assert store.rows(run) == []
    assert (store.folder_of(run) / FILE).exists()
    monkeypatch.setattr(worker, "_finish", finish)
    store.change(run, worker=None, state="interrupted")
    entry = resume_here(store, run, monkeypatch)
    assert (entry.state, entry.step) == ("finished", 20)
    assert entry.seconds > 0
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_what_a_killed_process_had_half_written_is_removed(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    folder = store.folder_of(run)
    (folder / "snapshots").mkdir(parents=True)
    halves = [folder / ".state.safetensors.abc.part", folder / "snapshots" / ".000010.safetensors.abc.part"]
    for half in halves:
        half.write_bytes(b"half")
    assert train(store, run, monkeypatch).state == "finished"
    assert not any(half.exists() for half in halves)


def test_later_snapshots_and_rows_go_when_a_run_goes_on_from_an_earlier_step(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(store)
    with pytest.raises(SystemExit):
        train(store, run, monkeypatch, at={16: failing_with(SystemExit())})
    save(load(snapshot_file(store.folder_of(run), 10)), snapshot_file(store.folder_of(run), 15))
    assert [row["step"] for row in store.rows(run)] == [5, 10, 15]
    store.change(run, worker=None, state="interrupted")
    seen: list[Entry] = []

    def look() -> None:
        seen.append(store.entry(run))
        assert snapshot_steps(store.folder_of(run)) == [0, 10]
        assert [row["step"] for row in store.rows(run)] == [5, 10]

    assert (
        resume_here(store, run, monkeypatch, at={10: look}).state == "finished"
    )  # a look that finds more fails the run
    assert seen[0].step == 10


def test_a_fork_begins_with_the_weights_of_its_snapshot(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = add(store)
    train(store, parent, monkeypatch)
    monkeypatch.setattr(jobs, "reconcile", lambda _: None)
    other = tiny_preset(steps=10, peak_lr=1e-4, seed=3, snapshot_every=10, model={"dropout": 0.2})
    forks = [jobs.fork(store, parent, 10, other, owner="bob") for _ in range(2)]
    for run in forks:
        entry = train(store, run, monkeypatch)
        assert (entry.state, entry.parent, entry.owner) == ("finished", f"{parent}@10", "bob")
        first, source = (load(snapshot_file(store.folder_of(r), s)).model for r, s in ((run, 0), (parent, 10)))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), source.parameters(), strict=True))
    assert_same_run(store, *forks)


def test_a_fork_that_was_stopped_goes_on_and_one_without_its_weights_does_not_begin(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = add(store)
    train(store, parent, monkeypatch)
    monkeypatch.setattr(jobs, "reconcile", lambda _: None)
    whole, stopped, robbed = (jobs.fork(store, parent, 10, PRESET) for _ in range(3))
    train(store, whole, monkeypatch)
    assert train(store, stopped, monkeypatch, at={7: lambda: store.send(stopped, "stop")}).state == "stopped"
    assert resume_here(store, stopped, monkeypatch).state == "finished"
    assert_same_run(store, stopped, whole)
    (store.folder_of(robbed) / jobs.START).unlink()
    entry = train(store, robbed, monkeypatch)
    assert entry.state == "failed"
    assert entry.message == f"The weights of {parent}@10 that this run begins with are missing; fork it once more."


@pytest.mark.parametrize(
    ("train_settings", "message"),
    [
        ({"seed": 5}, "had other train settings, so it cannot be resumed as this one."),
        ({"lr_changes": [[3, 0.1]]}, "had other train settings, so it cannot be resumed as this one."),
    ],
)
def test_settings_edited_by_hand_are_refused_and_put_right_go_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, train_settings: dict[str, Any], message: str
) -> None:
    run = add(store)
    stopped = train(store, run, monkeypatch, at={12: lambda: store.send(run, "stop")})
    state = (store.folder_of(run) / STATE).read_bytes()
    store.change(run, train=json.dumps(stopped.train | train_settings))
    entry = resume_here(store, run, monkeypatch)
    assert entry.state == "failed"
    assert message in entry.message
    assert (store.folder_of(run) / STATE).read_bytes() == state
    store.change(run, train=json.dumps(stopped.train))
    assert_goes_on(store, run, monkeypatch)


@pytest.mark.parametrize(
    ("train_settings", "message"), [({"steps": 0}, "steps must be from 1 to"), ({"nonsense": 1}, "nonsense")]
)
def test_settings_that_are_none_are_refused_at_once_and_put_right_go_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, train_settings: dict[str, Any], message: str
) -> None:
    run = add(store)
    stopped = train(store, run, monkeypatch, at={12: lambda: store.send(run, "stop")})
    store.change(run, train=json.dumps(stopped.train | train_settings))
    with pytest.raises(RunStoreError, match=f"cannot go on. .*{message}"):
        jobs.resume(store, run)
    store.change(run, train=json.dumps(stopped.train))
    assert_goes_on(store, run, monkeypatch)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 100])
def test_a_state_edited_by_hand_is_a_sentence(store: RunStore, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    run = add(store)
    train(store, run, monkeypatch, at={12: lambda: store.send(run, "stop")})
    state = store.folder_of(run) / STATE
    whole = state.read_bytes()
    state.write_bytes(content)
    entry = resume_here(store, run, monkeypatch)
    assert entry.state == "failed"
    assert "cannot be resumed: " in entry.message
    state.write_bytes(whole)
    assert_goes_on(store, run, monkeypatch)


class Gpu:
    """A device that is lost, as PyTorch says it."""

    OUT_OF_MEMORY = (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "ran out of memory")
    LOST = (torch.AcceleratorError("CUDA error: unspecified launch failure"), "was lost")


@pytest.mark.parametrize(("error", "why"), [Gpu.OUT_OF_MEMORY, Gpu.LOST])
def test_a_gpu_that_fails_in_the_middle_leaves_the_run_to_the_processor(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    run = add(store, device="cuda:0")
    with happenings(monkeypatch, at={12: failing_with(error)}):
        monkeypatch.setattr(worker, "choose_device", lambda _: torch.device("cpu"))  # in place of a GPU
        worker.work(store, run, claim(store, run, "cuda:0"))
    entry = store.entry(run)
    assert (entry.state, entry.wanted, entry.worker) == ("queued", "cpu", None)
    message = f"The GPU (cuda:0) {why}, so this run goes on on the processor from the last state it kept."
    assert entry.message == message
    seen = []
    entry = train(store, run, monkeypatch, at={10: lambda: seen.append(store.entry(run).step)})
    assert seen == [10]  # not from its beginning
    assert (entry.state, entry.message) == ("finished", message)
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_gpu_that_is_gone_when_the_worker_comes(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch.cuda.is_available() or torch.cuda.device_count() < 9
    run = add(store, device="cuda:9")
    with happenings(monkeypatch):
        worker.work(store, run, claim(store, run, "cuda:9"))
    entry = store.entry(run)
    assert (entry.state, entry.wanted) == ("queued", "cpu")
    assert (
        entry.message == "The GPU (cuda:9) was lost, so this run goes on on the processor from the last state it kept."
    )
    assert train(store, run, monkeypatch).state == "finished"


def test_a_stop_that_arrives_while_the_gpu_fails_is_not_forgotten(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(store, device="cuda:0")

    def lose() -> None:
        store.send(run, "stop")
        raise Gpu.LOST[0]

    with happenings(monkeypatch, at={12: lose}):
        monkeypatch.setattr(worker, "choose_device", lambda _: torch.device("cpu"))
        worker.work(store, run, claim(store, run, "cuda:0"))
    assert store.entry(run).state == "stopped"


def test_a_run_that_asked_for_a_gpu_and_got_the_processor_says_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(store, device="cuda:1")
    entry = train(store, run, monkeypatch)
    assert entry.state == "finished"
    assert entry.message == "The GPU that was asked for (cuda:1) is not there: trained on the processor."


def test_the_command_line_ends_when_the_book_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path)
    add(store)
    monkeypatch.setattr(worker, "prepare_process", lambda: None)  # which outlasts a test
    assert worker.main(["nonsense", "--folder", str(tmp_path), "--token", "x", "--lock", "0"]) == 1
    assert capfd.readouterr().err == "There is no run 'nonsense'; it may have been deleted.\n"


# In a process of its own: these settings outlast a test.
SETTLE = """
import os, torch
from types import SimpleNamespace
from xformer.training.loop import prepare_process
from xformer.training.worker import lower_priority

before = float(torch.tensor([1e-40]) * 1.0)
prepare_process()
lower_priority(SimpleNamespace(device="cuda:0"))
usual = os.sched_getscheduler(0) == os.SCHED_OTHER
lower_priority(SimpleNamespace(device="cpu"))
print(usual, torch.get_num_threads(), before > 0, float(torch.tensor([1e-40]) * 1.0), os.sched_getscheduler(0) == os.SCHED_IDLE)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has this priority")
def test_a_worker_process_has_one_thread_no_denormals_and_the_lowest_priority() -> None:
    answer = subprocess.run([sys.executable, "-c", SETTLE], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "1", "True", "0.0", "True"]
