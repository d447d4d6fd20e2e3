"""Where a fault is tried: a run store with a tiny run, what such a run ends in when nothing disturbs it, and the comparison."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.zygote import NONE, Fault, Zygote, end, spawn_by
from tests.training.at_work import outcome, untimed
from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.files import STATE
from xformer.presets import Preset
from xformer.training import jobs, liveness
from xformer.training.entry import Entry
from xformer.training.executors import process as processes
from xformer.training.loop import read_state
from xformer.training.run_store import RunStore

# With dropout and weight decay, and an end that falls on a snapshot, so that the state of the last step is written too.
SHORT = tiny_preset(steps=6, log_every=2, snapshot_every=3, model={"dropout": 0.2}, weight_decay=0.1)
LONG = tiny_preset(steps=160, log_every=5, snapshot_every=8, model={"dropout": 0.2}, weight_decay=0.1)
PATIENCE = 60.0
"""Seconds after which something that was waited for is taken as not happening."""


class NotPossibleError(Exception):
    """This machine offers no way to try a fault; says why."""


@dataclass(frozen=True)
class Trial:
    """What is tried, and how; raises `AssertionError` where it is not survived."""

    name: str
    run: Callable[[], None]


class Ground:
    """A fresh run store in a folder of its own, and the runs in it."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.zygote, self.folder = zygote, folder
        self.store = RunStore(folder / "book")

    def submit(self, settings: Preset, fault: Fault = NONE, **how: Any) -> str:
        """A new run, whose worker meets a fault."""
        with self.workers(fault):
            return jobs.submit(self.store, settings, **how)

    def resume(self, run: str, fault: Fault = NONE) -> None:
        """The button; the worker meets a fault."""
        with self.workers(fault):
            jobs.resume(self.store, run)

    def reconcile(self) -> None:
        """What a server does every second."""
        with self.workers():
            jobs.reconcile(self.store)

    @contextmanager
    def workers(self, fault: Fault = NONE) -> Iterator[None]:
        """Workers are forked from the zygote."""
        usual = processes.spawn
        processes.spawn = spawn_by(self.zygote.address, fault)
        try:
            yield
        finally:
            processes.spawn = usual

    def pid(self, run: str) -> int:
        """The process of a run, by its lock: known from the moment it is started."""
        return int((self.store.folder_of(run) / liveness.LOCK).read_text())

    def kill(self, run: str) -> None:
        """kill -9"""
        end(self.pid(run))

    def wait(self, run: str, what: str, holds: Callable[[Entry], bool], *, reconcile: bool = True) -> Entry:
        """Wait until something holds of a run, tending as a server would."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if reconcile:
                self.reconcile()
            entry = self.store.entry(run)
            if holds(entry):
                return entry
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen: {entry.state} at step {entry.step}, “{entry.message}”")
            time.sleep(0.01)

    def server(self, fault: Fault = NONE) -> int:
        """A process that tends the run store as a server does."""
        return self.zygote.start("reconcile", fault, folder=str(self.store.folder), seconds=600.0)

    def wait_for_end(self, run: str, *, reconcile: bool = True) -> None:
        """Wait until it is finished."""
        self.wait(run, "the end", lambda entry: entry.state == "finished", reconcile=reconcile)

    def wait_for_rest(self, run: str) -> Entry:
        """Wait until nothing is under way for a run; its state then is one that says why, in a plain sentence."""
        entry = self.wait(run, "an end", lambda entry: not entry.is_active and entry.state != "queued")
        assert entry.state in ("stopped", "interrupted", "failed", "finished", "damaged"), entry.state
        is_told = entry.state in ("interrupted", "failed", "damaged")
        if is_told or entry.message != liveness.RESTARTED:  # which a run that went on after it may still say
            assert bool(entry.message) == is_told, (entry.state, entry.message)
        assert "Traceback" not in entry.message, entry.message
        assert "\n" not in entry.message, entry.message
        return entry

    def wait_until_gone(self, pid: int) -> None:
        """Wait until a process has ended."""
        deadline = time.monotonic() + PATIENCE
        while os.path.exists(f"/proc/{pid}"):
            assert time.monotonic() < deadline, f"process {pid} has not ended"
            time.sleep(0.002)

    def assert_survived(self, run: str, settings: Preset) -> None:
        """Resumed if need be, it ends as if nothing had happened, with all its files whole."""
        if self.store.entry(run).state != "finished":
            self.resume(run)
            entry = self.wait(run, "an end", lambda entry: not entry.is_active and entry.state != "queued")
            assert entry.state == "finished", f"resumed, the run is {entry.state}: {entry.message}"
        self.assert_whole(run)
        self.assert_like(run, undisturbed(self.zygote, settings))

    def assert_whole(self, run: str, *, is_at_work: bool = False) -> None:
        """Every file can be read, and the run store too. Half-written files are there only while no worker has come since."""
        with self.store.database.reading() as db:
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        folder = self.store.folder_of(run)
        self.store.entries()
        self.store.rows(run)
        for path in folder.rglob("*"):
            if path.is_dir() or (path.suffix == ".part" and is_at_work):
                continue
            if path.name == STATE:
                read_state(folder)
            elif path.suffix == ".safetensors":
                load(path)
            elif path.name == "card.json":
                json.loads(path.read_text())
            else:
                assert path.name in (liveness.LOCK, processes.LOG), path

    def outcome(self, run: str) -> dict[str, Any]:
        """All that a finished run leaves, but for times."""
        entry, folder = self.store.entry(run), self.store.folder_of(run)
        assert entry.state == "finished", f"{entry.state}: {entry.message}"
        assert not (folder / STATE).exists()
        assert not list(folder.rglob("*.part"))
        found, card = outcome(self.store, run), load(folder).card
        return found | {"curve": untimed(card["curve"]), "figures of the card": card["figures"]}

    def assert_like(self, run: str, undisturbed: dict[str, Any]) -> None:
        """Bit for bit: weights, snapshots; metrics but for times. A stop or a pause leaves a snapshot more."""
        found = self.outcome(run)
        assert found["snapshots"].items() >= undisturbed["snapshots"].items()
        for name, theirs in undisturbed.items():
            assert name == "snapshots" or found[name] == theirs, f"{name} differs from the undisturbed run"


_undisturbed: dict[tuple[str, Preset], dict[str, Any]] = {}


def undisturbed(zygote: Zygote, settings: Preset) -> dict[str, Any]:
    """What a run ends in when nothing happens to it; trained once."""
    key = zygote.address, settings
    if key not in _undisturbed:
        with fresh(zygote) as ground:
            run = ground.submit(settings)
            ground.wait_for_end(run)
            _undisturbed[key] = ground.outcome(run)
    return _undisturbed[key]


@contextmanager
def fresh(zygote: Zygote) -> Iterator[Ground]:
    """An empty run store, removed afterwards with all processes unless a trial has failed."""
    memory = Path("/dev/shm")
    where = Path(tempfile.mkdtemp(prefix="xformer-fault-", dir=memory if memory.is_dir() else None))
    ground = Ground(zygote, where)
    try:
        yield ground
    except Exception as error:
        error.add_note(f"what it left is in {where}")
        raise
    else:
        shutil.rmtree(where, ignore_errors=True)
    finally:
        for pid in zygote.alive():
            end(pid)
