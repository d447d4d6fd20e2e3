"""Runs whose worker or server is disturbed at random moments, resumed, and compared bit for bit with an undisturbed run.

Workers are processes, as in the app. A full disk is simulated by limiting the size of the files that a worker can write: every
write beyond the limit fails, whether of a snapshot, the state, the log or the run store.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import claim, outcome, untimed
from tests.training.tiny import tiny_preset
from tests.trials import Kind
from xformer.checkpoints import load
from xformer.files import STATE, is_finished, snapshot_file, snapshot_steps
from xformer.presets import Preset
from xformer.training import jobs, liveness, worker
from xformer.training.loop import read_state
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore
from xformer.training.sweeps import members_of

# The last step has a snapshot, so that its state is written too. The first report is late, because the worker has the lowest
# priority after it, and the machine may be busy.
SETTINGS = tiny_preset(steps=450, log_every=225, snapshot_every=30, model={"dropout": 0.2}, weight_decay=0.1)
SWEPT = tiny_preset(steps=300, log_every=10, snapshot_every=20, weight_decay=0.1)
SEEDS = {"seed": [0, 1, 2]}
START_SECONDS, TRAINING_SECONDS = 4.0, 0.3
"""Largest delay in seconds before a fault: while a worker starts, and after its first step."""
PATIENCE = 240.0
"""Timeout in seconds of each wait."""


def wait(store: RunStore, run: str, what: str, holds: Callable[[RunRecord], bool], *, tends: bool = True) -> RunRecord:
    """Wait until a condition holds for a run, and reconcile the run store as a server does."""
    deadline = time.monotonic() + PATIENCE
    while not holds(entry := store.entry(run)):
        found = f"{entry.state}, step {entry.step}, “{entry.message}”"
        assert time.monotonic() < deadline, f"{what} did not happen: {found}"
        if tends:
            jobs.reconcile(store)
        time.sleep(0.1)
    return entry


def is_at_rest(entry: RunRecord) -> bool:
    return not entry.is_active and entry.state != "queued"


def later(
    store: RunStore, run: str, draw: random.Random, *, has_reported: bool = True, may_be_starting: bool = False
) -> int | None:
    """Wait for a random moment of a run's training or of its worker's start. Returns the worker's id if it is alive."""

    def is_training(entry: RunRecord) -> bool:
        return entry.pid is not None and not (has_reported and entry.unreported_starts)

    if may_be_starting and draw.random() < 0.3:
        time.sleep(draw.uniform(0, START_SECONDS))
    else:
        wait(store, run, "training", lambda entry: is_training(entry) or is_at_rest(entry))
        time.sleep(draw.uniform(0, TRAINING_SECONDS))
    lock = store.folder_of(run) / liveness.LOCK
    return liveness.holder(lock) if liveness.is_held(lock) else None


def send(pid: int | None, number: int) -> None:
    """Send a signal to a worker if it is alive."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(store: RunStore, run: str, draw: random.Random) -> None:
    """Kill the worker with SIGKILL."""
    if (pid := later(store, run, draw, may_be_starting=True)) is not None:
        assert os.getsid(pid) == pid != os.getsid(0), "it would end with the server"
    send(pid, signal.SIGKILL)
    entry = wait(store, run, "an end", is_at_rest)
    assert entry.state == "finished" or (entry.state == "interrupted" and liveness.ENDED in entry.message), entry


def end(store: RunStore, run: str, draw: random.Random) -> None:
    """Send SIGTERM, as the system does before it shuts down: the worker must save its current step."""
    send(later(store, run, draw, has_reported=False), signal.SIGTERM)
    entry = wait(store, run, "an end", is_at_rest)
    assert entry.state in ("interrupted", "finished"), entry.state
    if entry.state == "interrupted":
        assert read_state(store.folder_of(run)).values["step"] == entry.step


def fill_disk(store: RunStore, run: str, draw: random.Random) -> None:
    """Limit the size of the files that the worker can write, and possibly send SIGTERM, so that it saves its state."""
    most, is_to_end = draw.choice((0, 2_000, 10_000)), draw.random() < 0.5
    if (pid := later(store, run, draw)) is not None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        send(pid if is_to_end else None, signal.SIGTERM)
    entry = wait(store, run, "an end", is_at_rest)
    assert entry.state in ("failed", "interrupted", "finished"), entry.state


def stop(store: RunStore, run: str, draw: random.Random) -> None:
    """Stop the run as a visitor does. The worker stops, or is suspended and cannot. No process may remain."""
    pid = later(store, run, draw, has_reported=False)
    if draw.random() < 0.5:
        send(pid, signal.SIGSTOP)
    jobs.stop(store, run)
    entry = wait(store, run, "an end", is_at_rest)
    assert entry.state in ("stopped", "finished"), entry.state
    if entry.state == "finished":  # suspended after its last write to the store
        send(pid, signal.SIGCONT)
    wait(store, run, "the end of the process", lambda _: not liveness.is_held(store.folder_of(run) / liveness.LOCK))


FAULTS = (end, kill, fill_disk, stop)


def check_whole(store: RunStore, run: str) -> None:
    """Assert that the store and all files of an ended run can be read, and that a failed run has a message."""
    entry, folder = store.entry(run), store.folder_of(run)
    with store.database.reading() as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert entry.message or entry.state != "failed"
    assert entry.message.isprintable(), entry.message
    for step in snapshot_steps(folder):
        load(snapshot_file(folder, step))
    if (folder / STATE).exists():
        read_state(folder)


def check_outcome(store: RunStore, run: str, settings: Preset) -> None:
    """Assert that a run ended like an undisturbed run. Each stop adds a snapshot."""
    entry, folder = store.entry(run), store.folder_of(run)
    assert entry.state == "finished", f"{entry.state}: {entry.message}"
    assert is_finished(folder)
    assert not list(folder.rglob("*.part"))
    found, whole = outcome(store, run), undisturbed(settings)
    assert untimed(load(folder).card["curve"]) == found["rows"]
    assert found.pop("snapshots").items() >= whole["snapshots"].items()
    if found["figures"]["samples"] < whole["figures"]["samples"]:  # disturbed while it was scored
        assert entry.message == "Its scoring was ended early."
        del found["figures"]
    for name, value in found.items():
        assert value == whole[name], name


@cache
def undisturbed(settings: Preset) -> dict[str, Any]:
    """Return the outcome of an undisturbed run, which is trained once."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        run = store.add(settings)
        train_here(store, run)
        return outcome(store, run)


def train_here(store: RunStore, run: str) -> None:
    """Train a queued run to its end in a thread of this process."""

    def train() -> None:
        torch.set_flush_denormal(True)  # as in a worker; affects only this thread
        worker.work(store, run, claim(store, run))

    torch.set_num_threads(1)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def disturb(faults: Sequence[Callable[..., None]], draw: random.Random) -> list[str]:
    """Disturb one run with these faults in turn, and resume it after each. Returns its state after each fault."""
    states = []
    with tempfile.TemporaryDirectory(prefix="xformer-fault-") as folder:
        store = RunStore(folder)
        run = jobs.submit(store, SETTINGS, device="cpu")
        for fault in faults:
            if states:
                jobs.resume(store, run)
            fault(store, run, draw)
            check_whole(store, run)
            states.append(store.entry(run).state)
            if states[-1] == "finished":
                break
        else:
            store.change(run, state="queued")
            train_here(store, run)  # the last resume needs no process
        check_outcome(store, run, SETTINGS)
    return states


def runs(n: int, draw: random.Random) -> Iterator[str]:
    """Disturb each run with one to three random faults."""
    for _ in range(n):
        faults = draw.choices(FAULTS, k=draw.choice((1, 1, 2, 3)))
        states = disturb(faults, draw)
        yield ", ".join(f"{fault.__name__}: {state}" for fault, state in zip(faults, states, strict=False))


def servers(n: int, draw: random.Random) -> Iterator[str]:
    """Kill the server while it starts or manages two runs, and start another: no run may be lost or trained twice."""
    for _ in range(n):
        with tempfile.TemporaryDirectory(prefix="xformer-fault-") as folder:
            store = RunStore(folder)
            with server(store, 2) as first:
                assert first.stdout is not None
                first.stdout.readline()
                time.sleep(draw.choice((draw.uniform(0, 0.2), draw.uniform(0, 2 * START_SECONDS))))
                first.kill()
            with server(store, 0) as second:
                found = [entry.id for entry in store.entries()]
                assert len(found) <= 2
                for run in found:
                    wait(store, run, "the end", is_at_rest, tends=False)
                    check_whole(store, run)
                    check_outcome(store, run, SETTINGS)
                second.kill()
        yield f"{len(found)} runs"


def server(store: RunStore, n: int) -> subprocess.Popen[bytes]:
    """Start a server that submits `n` runs."""
    command = [sys.executable, "-m", "tests.faults.server", str(store.folder), str(n)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)


def sweeps(n: int, draw: random.Random) -> Iterator[str]:
    """Kill the process of a sweep once or twice: after a resume, all its models must become finished runs."""
    whole: list[Any] = []
    for number in range(n + 1):
        with tempfile.TemporaryDirectory(prefix="xformer-fault-") as folder:
            store = RunStore(folder)
            run = jobs.submit(store, SWEPT, device="cpu", sweep=SEEDS)
            kills = draw.choice((1, 2)) if number else 0  # the first one is undisturbed
            for _ in range(kills):
                kill(store, run, draw)
                if store.entry(run).state != "finished":
                    jobs.resume(store, run)
            wait(store, run, "the end", is_at_rest)
            found = _models_of(store, run)
        whole = whole or found
        for (steps, losses), (their_steps, their_losses) in zip(found, whole, strict=True):
            assert steps == their_steps
            # A model that is a step ahead when all are killed continues in another stack, which rounds in another order.
            assert losses == pytest.approx(their_losses, rel=1e-3)
        if number:
            yield f"{kills} kills"


def _models_of(store: RunStore, sweep: str) -> list[tuple[Any, ...]]:
    """Return the steps and losses of each model of a finished sweep."""
    found = []
    for member in members_of(store.entry(sweep)):
        entry, folder = store.entry(member.id), store.folder_of(member.id)
        assert (entry.state, entry.step, entry.sweep_of) == ("finished", SWEPT.train.steps, sweep), entry.message
        check_whole(store, member.id)
        assert is_finished(folder)
        rows = untimed(store.rows(member.id))
        assert untimed(load(folder).card["curve"]) == rows
        found.append(([[row["step"] for row in rows], snapshot_steps(folder)], [row["loss"] for row in rows]))
    assert not list(store.folder_of(sweep).glob("members/*")), "files of models that have become runs"
    return found


KINDS = [
    Kind("runs: kill, SIGTERM, full disk, stop", runs, 2, 100),
    Kind("server: killed and replaced", servers, 1, 20),
    Kind("sweep: process killed", sweeps, 1, 20),
]
