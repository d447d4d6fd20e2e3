"""Runs that are trained in the test's own process, so that a test can trigger events at chosen steps or polls."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.tiny import tiny_preset
from xformer.checkpoints import FILE
from xformer.errors import RunStoreError
from xformer.files import snapshot_file, snapshot_steps
from xformer.presets import Preset
from xformer.training import commands, jobs, liveness, loop, worker
from xformer.training.loop import read_state
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, entry_of, move

PRESET = tiny_preset(steps=20, log_every=5, snapshot_every=10, model={"dropout": 0.2}, weight_decay=0.1)
TIMES = ("seconds", "tokens_per_second")
Happening = Callable[[], Any] | str
"""An event for a run: a callable, or words such as "pause", "rate=0.02", "SIGTERM" and "dies"; see `LocalRun.happens`."""
Happenings = Mapping[int, Happening]


def claim(store: RunStore, run: str, device: str = "cpu") -> str:
    """Mark a run as running, as the server does before it starts a process, and return the token."""
    with store.database.writing() as db:
        move(db, entry_of(db, run), "running", device=device, worker="token", pid=None)
    return "token"


def waiting(number: int, owner: str, **values: Any) -> RunRecord:
    """Return a queued run outside any store; `values` overrides any field."""
    defaults: dict[str, Any] = {"number": number, "id": f"run{number}", "owner": owner, "state": "queued"}
    return RunRecord(**(defaults | {"deleted": None, "private": 0} | values))


def at_once(n: int, do: Callable[[], Any]) -> list[Any]:
    """Call a function in `n` threads at the same moment. Returns the results, or the messages of `RunStoreError`."""
    barrier = threading.Barrier(n)

    def work(_: int) -> Any:
        barrier.wait()
        try:
            return do()
        except RunStoreError as error:
            return str(error)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n)))


@contextmanager
def quick_worker(patch: pytest.MonkeyPatch, signal: Callable[..., Any] = lambda *_: None) -> Iterator[None]:
    """Make a worker poll between any two steps, and leave the priority and signal handlers of this process unchanged."""
    with patch.context() as patch:
        for name in ("LOOK_SECONDS", "WRITE_SECONDS", "ROOM_SECONDS"):
            patch.setattr(commands, name, 0.0)
        patch.setattr(worker, "lower_priority", lambda entry: None)
        patch.setattr(worker.signal, "signal", signal)
        patch.setattr(worker, "SAMPLES", 20)
        yield


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def failing_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def outcome(store: RunStore, run: str) -> dict[str, Any]:
    """Return everything that a finished run leaves, except times: hashes of all weights, the metrics and the settings."""
    folder, entry = store.folder_of(run), store.entry(run)
    snapshots = {step: bits(snapshot_file(folder, step)) for step in snapshot_steps(folder)}
    found: dict[str, Any] = {"weights": bits(folder / FILE), "snapshots": snapshots, "rows": untimed(store.rows(run))}
    return found | {"step": entry.step, "figures": entry.figures, "train": entry.train}


def bits(file: Path) -> str:
    """Return a hash of the weights in a file, without its header, which contains the training time."""
    content = file.read_bytes()
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()


BEFORE = -1
"""Pseudo-step of an event after the run has been assigned to its process and before the worker reads it."""
UNDISTURBED: dict[Preset, dict[str, Any]] = {}


NewRun = Callable[..., "LocalRun"]
"""The type of the fixture `new_run`."""


class LocalRun:
    """A queued run of a store, to be trained here by `train` or `resume`."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
        self.store, self.monkeypatch, self.id, self.folder = store, monkeypatch, run, store.folder_of(run)
        self.handlers: list[Callable[..., Any]] = []
        self.trained: loop.Run
        """The run that the worker trains; set at the first step."""

    def another(self, settings: Preset = PRESET, **how: Any) -> LocalRun:
        return LocalRun(self.store, self.monkeypatch, self.store.add(settings, **how))

    @property
    def entry(self) -> RunRecord:
        return self.store.entry(self.id)

    @property
    def saved_step(self) -> int:
        return read_state(self.folder).values["step"]

    @property
    def snapshots(self) -> list[int]:
        return snapshot_steps(self.folder)

    @property
    def reported(self) -> list[int]:
        return [row["step"] for row in self.store.rows(self.id)]

    @property
    def commands(self) -> list[str]:
        """The pending commands."""
        with self.store.database.reading() as db:
            return [row["kind"] for row in db.execute("SELECT kind FROM commands WHERE run = ?", (self.id,))]

    def happens(self, what: Happening) -> Any:
        """Apply an event to this run."""
        if not isinstance(what, str):
            return what()
        for word in what.split():
            kind, _, value = word.partition("=")
            if word == "dies":
                raise SystemExit
            if word == "SIGTERM":
                self.handlers[-1](15, None)
            else:
                self.store.send(self.id, kind, float(value) if value else None)
        return None

    def train(self, at: Happenings | None = None, pauses: Sequence[Happening] = (), device: str = "cpu") -> RunRecord:
        """Train the run. `at[step]` is applied before the next step; each poll of a paused worker applies one of `pauses`."""
        train_step, waiting = loop.Run.train_step, list(pauses)

        def step(run: loop.Run) -> None:
            self.trained = run
            self.happens((at or {}).get(run.step, ""))
            train_step(run)

        def sleep(_: float) -> None:
            assert waiting, "the worker polls more often than the test expects"
            self.happens(waiting.pop(0))

        # Hold the lock as the process would; otherwise an app opened by another test would mark the run as dead.
        lock = liveness.take(self.folder / liveness.LOCK)
        held = nullcontext() if lock is None else os.fdopen(lock)
        with held, self.monkeypatch.context() as patch:
            patch.setattr(loop.Run, "train_step", step)
            patch.setattr(commands, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
            with quick_worker(patch, lambda _, handler: self.handlers.append(handler)):
                token = claim(self.store, self.id, device)
                self.happens((at or {}).get(BEFORE, ""))
                worker.work(self.store, self.id, token)
        assert not waiting, "the worker polled less often than the test expects"
        return self.entry

    def dies(self, at: Happenings) -> None:
        """Train until the process is killed, and record that."""
        with pytest.raises(SystemExit):
            self.train(at)
        self.store.change(self.id, worker=None, state="interrupted")

    def resume(self, at: Happenings | None = None, pauses: Sequence[Happening] = ()) -> RunRecord:
        """Resume the run and train it here."""
        with self.monkeypatch.context() as patch:
            patch.setattr(jobs, "reconcile", lambda _: None)
            jobs.resume(self.store, self.id)
        return self.train(at, pauses)

    def outcome(self) -> dict[str, Any]:
        """Return the hash of the weights, the metrics without times, and the scores."""
        found = outcome(self.store, self.id)
        return {name: found[name] for name in ("weights", "rows", "figures")}

    def assert_undisturbed(self) -> None:
        """Assert that the run ended like an undisturbed run with its settings, which is trained once and cached."""
        entry, settings = self.entry, self.entry.settings()
        assert entry.state == "finished", entry.message
        if settings not in UNDISTURBED:
            other = self.another(settings)
            assert other.train().state == "finished"
            UNDISTURBED[settings] = other.outcome()
        assert self.outcome() == UNDISTURBED[settings]
        assert entry.figures["samples"] == 20

    def assert_goes_on(self) -> RunRecord:
        """Resume the run and assert that it ends like an undisturbed run."""
        entry = self.resume()
        self.assert_undisturbed()
        return entry


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    """Assert that two modules have the same weights, bit for bit."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
