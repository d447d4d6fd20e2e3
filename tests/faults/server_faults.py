"""A server that is killed while it writes down or starts a run, or during a visitor's training, and comes back."""

from __future__ import annotations

import errno
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.faults.disk import KILL
from tests.faults.disk_faults import calls_of
from tests.faults.ground import LONG, SHORT, Ground, Trial, fresh
from tests.faults.kill_faults import SLOW
from tests.faults.zygote import Fault, Zygote, end
from xformer.training import liveness
from xformer.training.liveness import LOCK

WAYS = {"the process ends": KILL, "no space": errno.ENOSPC, "an input/output error": errno.EIO}


def presses(zygote: Zygote, way: str, every: int, draw: random.Random) -> Iterator[Trial]:
    """Each call that a server makes from a press on Start to the worker being there."""
    names = calls_of(zygote, "a start", lambda ground, fault: press_start(ground, fault)["answer"])
    for at in range(1 + draw.randrange(every), len(names) + 1, every):
        yield Trial(f"{way} at the server's call {at}: {names[at - 1]}", partial(_press, zygote, way, at))


def _press(zygote: Zygote, way: str, at: int) -> None:
    with fresh(zygote) as ground:
        answer = press_start(ground, Fault(calls=(at, at, WAYS[way])))
        entries = ground.store.entries()
        assert len(entries) <= 1, "one press, two runs"
        if "answer" in answer:
            assert [entry.id for entry in entries] == [answer["answer"]], "confirmed, but not in the store"
        if "error" in answer:
            assert not entries, "refused, but in the store"
            assert "Traceback" not in answer["error"]
        for entry in entries:
            found = ground.wait(entry.id, "an end", lambda entry: not entry.is_active and entry.state != "queued")
            assert found.state == "finished", f"{found.state}: {found.message}"
            ground.assert_survived(entry.id, SHORT)


def press_start(ground: Ground, fault: Fault) -> dict[str, Any]:
    """The answer that a tab got, whose server is a process of its own; none where that was killed."""
    result = ground.folder / "answer"
    ground.wait_until_gone(ground.zygote.start("press", fault, folder=str(ground.store.folder), result=str(result)))
    return json.loads(result.read_text()) if result.exists() else {}


def restarts(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The server is killed while a run is trained and another one waits, and started again: the runs are unaffected."""
    for number in range(n):
        moments = draw.uniform(0, 1.5), draw.uniform(0, 1.0)
        yield Trial(f"restart {number} after {moments[0]:.2f} s", partial(_restart, zygote, moments))


def _restart(zygote: Zygote, moments: tuple[float, float]) -> None:
    with fresh(zygote) as ground:
        server = ground.server()
        first, second = ground.submit(LONG, SLOW), ground.submit(LONG, SLOW)
        worker = ground.pid(first)
        time.sleep(moments[0])
        end(server)
        ground.wait_until_gone(server)
        time.sleep(moments[1])
        assert ground.store.entry(first).state == "finished" or ground.pid(first) == worker
        ground.server()
        for run in (first, second):
            ground.wait_for_end(run, reconcile=False)
            ground.assert_survived(run, LONG)
            assert not liveness.is_held(ground.store.folder_of(run) / LOCK) or ground.pid(run) in zygote.alive()
