"""The worker: however it ends, the run records the reason in one sentence, and it never touches another worker's run."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import LocalRun, NewRun, assert_same_weights, claim, failing_with, quick_worker
from tests.training.tiny import tiny_preset
from xformer.checkpoints import FILE, load, save
from xformer.errors import RunStoreError
from xformer.files import STATE, snapshot_file
from xformer.training import jobs, worker
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore


def test_worker_trains_a_run_to_its_end(run: LocalRun) -> None:
    halves = [run.folder / ".state.safetensors.abc.part", run.folder / "snapshots" / ".000010.safetensors.abc.part"]
    for half in halves:  # partial files of a killed process, which must be removed
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(b"half")
    entry = run.train()
    assert (entry.state, entry.step, entry.worker, entry.pid, entry.message) == ("finished", 20, None, None, "")
    assert set(entry.live) == {"loss", "gradient_norm", "learning_rate", "steps_per_second"}
    assert (run.reported, run.snapshots) == ([5, 10, 15, 20], [0, 10, 20])
    assert entry.seconds == run.store.rows(run.id)[-1]["seconds"]
    assert entry.figures == load(run.folder).card["figures"]
    assert not any(half.exists() for half in halves)
    run.assert_undisturbed()


def test_worker_ignores_a_run_that_was_not_assigned_to_it(run: LocalRun) -> None:
    with quick_worker(run.monkeypatch):
        worker.work(run.store, run.id, "a token from elsewhere")
        assert run.entry.state == "queued"
        claim(run.store, run.id)
        worker.work(run.store, run.id, "a token from elsewhere")
    worker.release(run.store, run.id, "a token from elsewhere", "finished", "")
    assert (run.entry.state, run.entry.worker) == ("running", "token")
    assert not run.folder.exists()


NO_MEMORY = "The run ran out of memory at step 12; try a smaller batch (it was 4, try 1) or a smaller model."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
         "The disk is full; everything saved before is intact. Resume continues from there."),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("unsupported memory format option"), "The run failed with an unexpected error (RuntimeError)."),
        (RunStoreError("The run store is odd."), "The run store is odd."),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_failure_of_a_worker_is_recorded_as_one_sentence(run: LocalRun, error: Exception, message: str) -> None:
    entry = run.train({12: failing_with(error)})
    assert (entry.state, entry.worker, run.saved_step) == ("failed", None, 10)
    assert entry.message.startswith(message)
    assert "\n" not in entry.message
    run.assert_goes_on()


@pytest.mark.parametrize("name", [STATE, "000010.safetensors", FILE])
def test_full_disk_at_any_file_fails_the_run_with_a_message(run: LocalRun, name: str) -> None:
    replace = os.replace

    def full(old: str, new: Path) -> None:
        if new.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(old, new)

    with run.monkeypatch.context() as patch:
        entry = run.train({9: lambda: patch.setattr(os, "replace", full)})
    assert (entry.state, entry.message.partition(";")[0]) == ("failed", "The disk is full")
    assert not list(run.folder.rglob("*.part"))
    run.assert_goes_on()


def test_allocation_that_exceeds_memory_fails_the_run_with_a_message(run: LocalRun) -> None:
    entry = run.train({12: lambda: torch.empty(10**15)})
    assert (entry.state, entry.message) == ("failed", NO_MEMORY)


def test_run_killed_after_its_last_step_but_before_recording_it_can_finish(run: LocalRun) -> None:
    with run.monkeypatch.context() as patch:
        patch.setattr(worker, "finish", failing_with(SystemExit()))
        patch.setattr(worker.CommandLoop, "flush", lambda _: None)  # killed before it could write its last metrics
        run.dies({})
    assert run.reported == []
    assert (run.folder / FILE).exists()
    entry = run.assert_goes_on()
    assert entry.step == 20
    assert entry.seconds > 0


def test_later_snapshots_and_metrics_are_removed_when_a_run_resumes_from_an_earlier_step(run: LocalRun) -> None:
    run.dies({16: "dies"})
    save(load(snapshot_file(run.folder, 10)), snapshot_file(run.folder, 15))
    assert run.reported == [5, 10, 15]
    seen = []
    entry = run.resume({10: lambda: seen.append((run.entry.step, run.snapshots, run.reported))})
    assert entry.state == "finished"
    assert seen == [(10, [0, 10], [5, 10])]


def test_fork_starts_from_the_weights_of_its_snapshot(run: LocalRun) -> None:
    run.train()
    run.monkeypatch.setattr(jobs, "reconcile", lambda _: None)
    settings = tiny_preset(steps=10, peak_lr=1e-4, seed=3, snapshot_every=10, model={"dropout": 0.2})
    ids = [jobs.fork(run.store, run.id, 10, settings, owner="bob") for _ in range(3)]
    whole, stopped, without_weights = forks = [LocalRun(run.store, run.monkeypatch, id) for id in ids]
    assert stopped.train({7: "stop"}).state == "stopped"
    (without_weights.folder / jobs.START).unlink()
    entry = without_weights.train()
    assert entry.state == "failed"
    assert entry.message == f"The weights of {run.id}@10 that this run starts from are missing; fork it again."
    for fork, entry in ((whole, whole.train()), (stopped, stopped.resume())):
        assert (entry.state, entry.parent, entry.owner) == ("finished", f"{run.id}@10", "bob")
        first, source = (load(snapshot_file(one.folder, at)).model for one, at in ((fork, 0), (run, 10)))
        assert_same_weights(first, source)
    assert forks[0].outcome() == forks[1].outcome()


LOST = torch.AcceleratorError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize(
    ("error", "why"),
    [(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "ran out of memory"), (LOST, "was lost")],
)  # fmt: skip
def test_run_whose_gpu_fails_continues_on_the_cpu(new_run: NewRun, error: Exception, why: str) -> None:
    run = new_run(device="cuda:0")
    run.monkeypatch.setattr(worker, "choose_device", lambda _: torch.device("cpu"))  # stands in for a GPU
    entry = run.train({12: failing_with(error)}, device="cuda:0")
    message = f"The GPU (cuda:0) {why}, so this run continues on the CPU from its last saved state."
    assert (entry.state, entry.wanted, entry.worker, entry.message) == ("queued", "cpu", None, message)
    seen = []
    assert run.train({10: lambda: seen.append(run.entry.step)}).message == message
    assert seen == [10]  # it did not start over
    run.assert_undisturbed()


def test_run_that_requested_a_missing_gpu_has_a_message(new_run: NewRun) -> None:
    entry = new_run(device="cuda:1").train()
    message = "The requested GPU (cuda:1) does not exist; this run uses the CPU."
    assert (entry.state, entry.message) == ("finished", message)


def test_worker_command_reports_an_unknown_run_in_one_sentence(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "prepare_process", lambda: None)  # its settings would outlast the test
    assert worker.main(["nonsense", "--folder", str(tmp_path), "--token", "x", "--lock", "0"]) == 1
    assert capfd.readouterr().err == "There is no run 'nonsense'; it may have been deleted.\n"


def prepare(results: Any) -> None:
    before = float(torch.tensor([1e-40]) * 1.0)
    worker.prepare_process()
    worker.lower_priority(RunRecord(device="cuda:0"))
    is_normal = os.sched_getscheduler(0) == os.SCHED_OTHER
    worker.lower_priority(RunRecord(device="cpu"))
    is_idle = os.sched_getscheduler(0) == os.SCHED_IDLE
    results.put((is_normal, torch.get_num_threads(), before > 0, float(torch.tensor([1e-40]) * 1.0), is_idle))


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has this priority")
def test_worker_process_has_one_thread_no_denormals_and_the_lowest_priority() -> None:
    context = multiprocessing.get_context("spawn")  # a new process, because these settings would outlast the test
    results = context.SimpleQueue()
    process = context.Process(target=prepare, args=(results,))
    process.start()
    assert results.get() == (True, 1, True, 0.0, True)
    process.join()
