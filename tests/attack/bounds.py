"""Runs without end stay within what the server allows."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from tests.attack.ground import BY_ADDRESS, Ground
from tests.attack.visitor import FindingError, Visitor
from tests.training.tiny import tiny_preset
from xformer.training import jobs, liveness
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore


def runs(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Start runs with new cookies and without one: the limit of the address holds, and no run is without an owner."""
    store = RunStore(ground.folder / "runs")
    # The one processor is taken, so that all others wait: what is tried is how many there may be.
    at_work = store.add(tiny_preset(), owner="at work", state="running")
    lock = liveness.take(store.folder_of(at_work) / liveness.LOCK)
    assert lock is not None
    store.change(at_work, worker="at work", device="cpu", unreported_starts=0)
    try:
        for number in range(n):
            cookie = "" if number % 4 == 0 else None
            with Visitor(ground.base, cookie=cookie) as visitor:
                visitor.open("train")
                visitor.press("start_induction")
            if any(entry.owner == "" for entry in store.entries()):
                raise FindingError("there is a run without an owner")
            if (found := len(_under_way(store))) > BY_ADDRESS:
                raise FindingError(f"{found} runs are under way from one address, and {BY_ADDRESS} are allowed")
            yield "refused without an owner" if cookie == "" else f"{found} under way"
        with Visitor(ground.base, headers={"X-Forwarded-For": "203.0.113.7"}) as visitor:  # as a proxy here says it
            visitor.open("train")
            visitor.press("start_induction")
            if not any(entry.owner == visitor.cookie for entry in store.entries()):
                raise FindingError("the limit of one address holds for another one too")
        yield "another address may"
    finally:
        for entry in _under_way(store):
            jobs.stop(store, entry.id)
        store.change(at_work, worker=None, state="stopped")
        os.close(lock)


def _under_way(store: RunStore) -> list[Entry]:
    running = [entry for entry in store.entries() if entry.is_active or entry.state == "queued"]
    return [entry for entry in running if entry.owner != "at work"]
