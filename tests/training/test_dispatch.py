"""Which run is next: one per device, each visitor's first run before any second one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest

from xformer.training import jobs, liveness
from xformer.training.entry import Entry
from xformer.training.executors import process as processes
from xformer.training.run_store import RunStore

ONE, TWO = ["cpu"], ["cuda:0", "cpu"]


def entry(number: int, owner: str = "ada", **values: Any) -> Entry:
    """A waiting run; any of its values can be given."""
    usual: dict[str, Any] = {"number": number, "id": f"run{number}", "owner": owner, "state": "queued"}
    return Entry(**(usual | {"deleted": None, "private": 0} | values))


@dataclass
class Room:
    """People, their runs, and devices: started and finished as the server would do it."""

    available: list[str]
    entries: list[Entry] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """Whose runs were started, in order."""

    def ask(self, owner: str, n: int = 1, **values: Any) -> None:
        for _ in range(n):
            self.entries.append(entry(len(self.entries) + 1, owner, **values))

    def start(self) -> None:
        for device in self.available:
            for chosen in jobs.next_for(device, self.entries, self.available)[:1]:
                turn = 1 + max(other.turn for other in self.entries)
                self._put(chosen.but(state="running", device=device, worker="w", turn=turn))
                self.order.append(chosen.owner)

    def finish(self, device: str = "cpu") -> None:
        for running in self.entries:
            if running.is_active and running.device == device:
                self._put(running.but(state="finished", worker=None))

    def go_on(self, n: int) -> None:
        for _ in range(n):
            self.start()
            self.finish()

    def _put(self, changed: Entry) -> None:
        self.entries = [changed if other.id == changed.id else other for other in self.entries]


def test_queued_runs_of_three_owners_alternate() -> None:
    room = Room(ONE)
    room.ask("ada", 6)
    room.ask("bob", 4)
    room.ask("cy", 2)
    room.go_on(12)
    assert room.order == ["ada", "bob", "cy"] * 2 + ["ada", "bob"] * 2 + ["ada"] * 2


def test_a_late_owner_is_served_next() -> None:
    room = Room(ONE)
    room.ask("ada", 20)
    room.go_on(5)
    room.start()
    room.ask("bob", 2)
    room.finish()
    room.go_on(1)
    room.start()
    assert room.order[6:] == ["bob", "ada"]


def test_an_owner_with_a_device_waits_behind_one_without() -> None:
    room = Room(TWO)
    room.ask("ada", 3, wanted="cpu")
    room.start()
    room.ask("bob", wanted="cpu")
    assert [e.owner for e in jobs.in_turn(room.entries)] == ["bob", "ada", "ada"]


def test_a_device_trains_one_run_at_a_time() -> None:
    running = entry(1, state="running", worker="w", device="cpu")
    assert jobs.next_for("cpu", [running, entry(2)], ONE) == []
    paused = running.but(state="paused")
    assert jobs.next_for("cpu", [paused, entry(2)], ONE) == []
    left = paused.but(worker=None)  # its process has made room
    assert [e.number for e in jobs.next_for("cpu", [left, entry(2)], ONE)] == [2]


@pytest.mark.parametrize(
    ("wanted", "available", "devices"),
    [
        ("auto", ["cpu"], ["cpu"]),
        ("auto", ["cuda:0", "cuda:1", "cpu"], ["cuda:0", "cuda:1"]),
        ("cpu", ["cuda:0", "cpu"], ["cpu"]),
        ("cuda", ["cuda:0", "cpu"], ["cuda:0"]),
        ("cuda", ["cpu"], ["cpu"]),
        ("cuda:1", ["cuda:0", "cuda:1", "cpu"], ["cuda:1"]),
        ("cuda:1", ["cuda:0", "cpu"], ["cpu"]),
    ],
)
def test_which_devices_a_run_may_have(wanted: str, available: list[str], devices: list[str]) -> None:
    assert [device for device in available if jobs.suits(entry(1, wanted=wanted), device, available)] == devices


def test_the_queue_position_counts_only_runs_for_the_same_device() -> None:
    people = (("ada", "auto"), ("bob", "cpu"), ("cy", "auto"), ("ada", "auto"), ("dee", "cpu"))
    entries = [entry(number, owner, wanted=wanted) for number, (owner, wanted) in enumerate(people, start=1)]
    assert [jobs.place(f"run{number}", entries, TWO) for number in range(1, 6)] == [0, 0, 1, 2, 1]
    assert [jobs.place(f"run{number}", entries, ONE) for number in range(1, 6)] == [0, 1, 2, 4, 3]
    assert jobs.place("unknown", entries, TWO) == 0


def test_the_processor_is_always_there() -> None:
    assert jobs.devices()[-1] == "cpu"


def test_a_worker_is_started_detached_with_its_lock_and_keeps_its_memory(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []

    class Process:
        pid = 7

        def __init__(self, command: list[str], **how: Any) -> None:
            started.append((command, how))

        def wait(self) -> None: ...

    folder = store.folder_of("run")
    lock = liveness.take(folder / liveness.LOCK)
    assert lock is not None
    monkeypatch.setattr(processes.subprocess, "Popen", Process)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    processes.spawn(folder, store, "run", "token", lock)
    os.close(lock)
    [(command, how)] = started
    assert command[1:] == [
        *("-m", "xformer.training.worker", "run", "--folder", str(store.folder.resolve())),
        *("--token", "token", "--lock", str(lock)),
    ]
    assert how["start_new_session"]
    assert how["pass_fds"] == (lock,)
    assert how["env"]["MALLOC_MMAP_THRESHOLD_"] == str(1 << 30)
    assert how["env"]["MALLOC_TRIM_THRESHOLD_"] == "5"  # the environment of the server comes first
    assert liveness.holder(folder / liveness.LOCK) == 7
