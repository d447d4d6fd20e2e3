"""The choice of the executor, the relay and its status, and the executor `process`. test_ray.py tests `ray`."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny import tiny_preset
from xformer.errors import ConfigError, RunStoreError
from xformer.training import executors, jobs, liveness
from xformer.training.executors import __main__, relay
from xformer.training.executors.relay import Status
from xformer.training.limits import Limits
from xformer.training.run_store import RunStore


def test_environment_selects_the_executor() -> None:
    assert [executors.chosen({}), executors.chosen({"XFORMER_EXECUTOR": ""})] == ["process", "process"]
    assert executors.chosen({"XFORMER_EXECUTOR": "ray"}) == "ray"
    with pytest.raises(ConfigError, match="XFORMER_EXECUTOR must be process or ray, got 'slurm'; for example ray"):
        executors.chosen({"XFORMER_EXECUTOR": "slurm"})
    assert relay.ray_address({"XFORMER_RAY_ADDRESS": "10.0.0.5:6379"}) == "10.0.0.5:6379"


def test_no_training_module_imports_ray_at_the_top_level() -> None:
    for file in Path(executors.__file__).parents[1].rglob("*.py"):
        assert not re.search(r"^(import|from) ray\b", file.read_text(), re.MULTILINE), file


def test_repeated_reconcile_starts_one_relay_for_cluster_runs(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    held: list[int] = []

    def detached(module: str, arguments: list[str], log: Any, lock: int) -> None:
        started.append((module, arguments))
        held.append(os.dup(lock))

    monkeypatch.setattr(relay, "detached", detached)
    run = store.add(tiny_preset())
    store.change(run, state="running", worker="token", node="node-1")
    for _ in range(3):
        jobs.reconcile(store)  # even with the executor `process`, runs on the cluster are still managed
    entry = store.entry(run)
    assert (entry.state, entry.worker) == ("running", "token")  # not marked as dead
    assert liveness.with_process_state(store, entry) == entry
    assert [module for module, _ in started] == ["xformer.training.executors"]
    os.close(held.pop())


def test_sweep_too_large_for_one_process_is_allowed_on_ray(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"sweep": {"seed": range(500)}, "limits": Limits(models=500, run_memory=400, disk=10**12)}
    settings = tiny_preset(batch_size=256)
    with pytest.raises(RunStoreError, match="choose a smaller batch, shorter inputs, or fewer models"):
        jobs.submit(store, settings, **how)
    monkeypatch.setenv("XFORMER_EXECUTOR", "ray")
    monkeypatch.setattr(jobs, "start_relay", lambda store: None)
    entry = store.entry(jobs.submit(store, settings, **how))
    assert entry.sweep is not None


def test_runs_report_an_unreachable_cluster_and_can_stop(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("XFORMER_RAY_ADDRESS", address)
    monkeypatch.setattr(relay, "detached", lambda *_: None)
    goes_on, stops, here = (store.add(tiny_preset()) for _ in range(3))
    for run in (goes_on, stops):
        store.change(run, state="running", worker="token", node="node-1")
    jobs.stop(store, stops)
    problem = __main__.attend(store, os.getppid(), lambda problem: None)
    assert problem == f"The Ray cluster at {address} cannot be reached."
    __main__.away(store, problem)
    found = [(store.entry(run).state, store.entry(run).message) for run in (goes_on, stops, here)]
    assert found == [("running", __main__.AWAY), ("stopped", __main__.AWAY_STOPPED), ("queued", "")]
    lock = liveness.take(store.folder / relay.RELAY_LOCK)
    status = Status.read(store.folder)
    assert status is not None
    assert status.problem == problem
    assert lock is not None
    os.close(lock)
    assert not __main__._is_done(store, os.getppid() + 1)  # a run is waiting
    for run in (goes_on, here):
        store.change(run, state="stopped", worker=None)
    assert __main__._is_done(store, os.getppid() + 1)
    assert not __main__._is_done(store, os.getppid())  # the server is alive and may start a run


def test_lost_head_of_the_cluster_is_noticed_promptly() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=__main__._watch, args=(head, gone.set), daemon=True).start()
        assert not gone.wait(0.6)
    assert gone.wait(30)
