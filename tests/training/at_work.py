"""A worker in the process of a test: what happens to it happens at the step, or at the look around, that the test names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.tiny import tiny_preset
from xformer.presets import Preset
from xformer.training import commands, jobs, liveness, loop, worker
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore, entry_of, move

PRESET = tiny_preset(steps=20, log_every=5, snapshot_every=10, model={"dropout": 0.2}, weight_decay=0.1)
Happening = Callable[[], Any]


def claim(store: RunStore, run: str, device: str = "cpu") -> str:
    """What the server does before it starts a process; returns the token."""
    with store.database.writing() as db:
        move(db, entry_of(db, run), "running", device=device, worker="token", pid=None)
    return "token"


@contextmanager
def happenings(
    monkeypatch: pytest.MonkeyPatch, at: Mapping[int, Happening] | None = None, pauses: list[Happening] | None = None
) -> Iterator[None]:
    """`at[step]` happens before the step that follows it; each look around of a paused worker uses up one of `pauses`."""
    train_step, waiting = loop.Run.train_step, list(pauses or [])

    def step(run: loop.Run) -> None:
        if at and run.step in at:
            at[run.step]()
        train_step(run)

    def sleep(_: float) -> None:
        assert waiting, "the worker waits for something that the test does not know of"
        waiting.pop(0)()

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "train_step", step)
        patch.setattr(commands, "LOOK_SECONDS", 0.0)
        patch.setattr(commands, "WRITE_SECONDS", 0.0)
        patch.setattr(commands, "ROOM_SECONDS", 0.0)
        patch.setattr(commands, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        patch.setattr(worker, "lower_priority", lambda entry: None)
        patch.setattr(worker.signal, "signal", lambda *_: None)
        patch.setattr(worker, "SAMPLES", 20)
        yield
    assert not waiting, "the worker did not wait as often as the test thought"


def train(store: RunStore, run: str, monkeypatch: pytest.MonkeyPatch, **what: Any) -> Entry:
    """Have a queued run trained here, and return what the run store says then."""
    # Held as its process would hold it: else the keeper of an app that another test has opened takes the run for dead.
    lock = liveness.take(store.folder_of(run) / liveness.LOCK)
    try:
        with happenings(monkeypatch, **what):
            worker.work(store, run, claim(store, run))
    finally:
        if lock is not None:
            os.close(lock)
    return store.entry(run)


def resume_here(store: RunStore, run: str, monkeypatch: pytest.MonkeyPatch, **what: Any) -> Entry:
    """Press Resume, and have the run trained here."""
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "reconcile", lambda _: None)
        jobs.resume(store, run)
    return train(store, run, monkeypatch, **what)


def add(store: RunStore, settings: Preset = PRESET, **how: Any) -> str:
    """A run that waits."""
    return store.add(settings, **how)
