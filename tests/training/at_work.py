"""Runs trained in the process of a test: what happens to one happens at a step, or at a look around, that the test names."""

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
from xformer.training.entry import Entry
from xformer.training.loop import read_state
from xformer.training.run_store import RunStore, entry_of, move

PRESET = tiny_preset(steps=20, log_every=5, snapshot_every=10, model={"dropout": 0.2}, weight_decay=0.1)
TIMES = ("seconds", "tokens_per_second")
Happening = Callable[[], Any] | str
"""A call, or words for a run: commands like "pause" or "rate=0.02", SIGTERM, and "dies"; see `LocalRun.happens`."""


def claim(store: RunStore, run: str, device: str = "cpu") -> str:
    """What the server does before it starts a process; returns the token."""
    with store.database.writing() as db:
        move(db, entry_of(db, run), "running", device=device, worker="token", pid=None)
    return "token"


def waiting(number: int, owner: str, **values: Any) -> Entry:
    """A run that waits, and is in no store; any of its values can be given."""
    usual: dict[str, Any] = {"number": number, "id": f"run{number}", "owner": owner, "state": "queued"}
    return Entry(**(usual | {"deleted": None, "private": 0} | values))


def at_once(n: int, do: Callable[[], Any]) -> list[Any]:
    """What `n` threads return or raise that do the same at the same moment."""
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
    """A worker looks around between any two steps, and leaves priorities and signals of this process alone."""
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
    """All that a finished run leaves, but for times: the bits of all weights, and the metrics."""
    folder, entry = store.folder_of(run), store.entry(run)
    snapshots = {step: bits(snapshot_file(folder, step)) for step in snapshot_steps(folder)}
    found: dict[str, Any] = {"weights": bits(folder / FILE), "snapshots": snapshots, "rows": untimed(store.rows(run))}
    return found | {"step": entry.step, "figures": entry.figures, "train": entry.train}


def bits(file: Path) -> str:
    """A hash of the weights in a file, without its header, which has the time that the training took."""
    content = file.read_bytes()
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()


BEFORE = -1
"""In place of a step: when the run has its process, which has not looked at it yet."""
UNDISTURBED: dict[Preset, dict[str, Any]] = {}


NewRun = Callable[..., "LocalRun"]
"""What the fixture `new_run` is."""


class LocalRun:
    """A run of a store, which waits for `train` or `resume`."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
        self.store, self.monkeypatch, self.id, self.folder = store, monkeypatch, run, store.folder_of(run)
        self.handlers: list[Callable[..., Any]] = []
        self.trained: loop.Run
        """What the worker trains, from the first step on."""

    def another(self, settings: Preset = PRESET, **how: Any) -> LocalRun:
        return LocalRun(self.store, self.monkeypatch, self.store.add(settings, **how))

    @property
    def entry(self) -> Entry:
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
        """Those that nobody has carried out."""
        with self.store.database.reading() as db:
            return [row["kind"] for row in db.execute("SELECT kind FROM commands WHERE run = ?", (self.id,))]

    def happens(self, what: Happening) -> Any:
        """Do it to this run."""
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

    def train(
        self, at: Mapping[int, Happening] | None = None, pauses: Sequence[Happening] = (), device: str = "cpu"
    ) -> Entry:
        """`at[step]` happens before the step that follows it; each look around of a paused worker uses up one of `pauses`."""
        train_step, waiting = loop.Run.train_step, list(pauses)

        def step(run: loop.Run) -> None:
            self.trained = run
            self.happens((at or {}).get(run.step, ""))
            train_step(run)

        def sleep(_: float) -> None:
            assert waiting, "the worker waits for something that the test does not know of"
            self.happens(waiting.pop(0))

        # Held as its process would hold it: else the keeper of an app that another test has opened takes the run for dead.
        lock = liveness.take(self.folder / liveness.LOCK)
        held = nullcontext() if lock is None else os.fdopen(lock)
        with held, self.monkeypatch.context() as patch:
            patch.setattr(loop.Run, "train_step", step)
            patch.setattr(commands, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
            with quick_worker(patch, lambda _, handler: self.handlers.append(handler)):
                token = claim(self.store, self.id, device)
                self.happens((at or {}).get(BEFORE, ""))
                worker.work(self.store, self.id, token)
        assert not waiting, "the worker did not wait as often as the test thought"
        return self.entry

    def dies(self, at: Mapping[int, Happening]) -> None:
        """Train until the process is killed, which is noticed."""
        with pytest.raises(SystemExit):
            self.train(at)
        self.store.change(self.id, worker=None, state="interrupted")

    def resume(self, at: Mapping[int, Happening] | None = None, pauses: Sequence[Happening] = ()) -> Entry:
        """Press Resume, and have the run trained here."""
        with self.monkeypatch.context() as patch:
            patch.setattr(jobs, "reconcile", lambda _: None)
            jobs.resume(self.store, self.id)
        return self.train(at, pauses)

    def outcome(self) -> dict[str, Any]:
        """The bits of the weights, and the metrics but for times."""
        found = outcome(self.store, self.id)
        return {name: found[name] for name in ("weights", "rows", "figures")}

    def assert_undisturbed(self) -> None:
        """It ended like a run with its settings that nothing happened to, which is trained once."""
        entry, settings = self.entry, self.entry.settings()
        assert entry.state == "finished", entry.message
        if settings not in UNDISTURBED:
            whole = self.another(settings)
            assert whole.train().state == "finished"
            UNDISTURBED[settings] = whole.outcome()
        assert self.outcome() == UNDISTURBED[settings]
        assert entry.figures["samples"] == 20

    def assert_goes_on(self) -> Entry:
        """Resumed, it ends like a run that nothing happened to."""
        entry = self.resume()
        self.assert_undisturbed()
        return entry


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    """Bit for bit."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
