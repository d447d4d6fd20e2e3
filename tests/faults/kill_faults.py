"""kill -9 and SIGTERM, at any moment of a run, once or several times in a row."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial

from tests.faults.ground import LONG, Trial, fresh, undisturbed
from tests.faults.zygote import NONE, Fault, Zygote, end
from xformer.training.loop import read_state


def kills(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The worker is killed at a random moment, up to three times, and resumed each time."""
    seconds = duration(zygote)
    for number in range(n):
        moments = [draw.uniform(0, seconds) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        at = ", ".join(f"{moment * 1000:.0f} ms" for moment in moments)
        yield Trial(f"kill {number} after {at}", partial(_kill, zygote, moments))


def _kill(zygote: Zygote, moments: list[float]) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG)
        for moment in moments:
            pid = ground.pid(run)
            time.sleep(moment)
            end(pid)
            ground.wait_until_gone(pid)
            entry = ground.wait_for_rest(run)
            assert entry.state in ("interrupted", "finished"), entry.state
            ground.assert_whole(run, is_at_work=True)
            if entry.state == "finished":
                break
            ground.resume(run)
        ground.wait_for_end(run)
        ground.assert_survived(run, LONG)


def terms(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The system asks the worker to end (SIGTERM): it keeps the very step it was at."""
    for number in range(n):
        step = draw.randrange(1, 150)
        yield Trial(f"SIGTERM {number} from step {step} on", partial(_term, zygote, step))


def _term(zygote: Zygote, step: int) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        pid = ground.pid(run)
        ground.wait(run, f"step {step}", lambda entry: entry.step >= step or not entry.is_active, reconcile=False)
        os.kill(pid, signal.SIGTERM)
        ground.wait_until_gone(pid)
        entry = ground.wait_for_rest(run) if ground.store.entry(run).is_active else ground.store.entry(run)
        assert entry.state in ("interrupted", "finished"), entry.state
        ground.assert_whole(run)
        if entry.state == "interrupted":
            assert read_state(ground.store.folder_of(run)).values["step"] == entry.step >= step
        ground.assert_survived(run, LONG)


SLOW = Fault(mischief={"slow": {"seconds": 0.01}})
_seconds: dict[str, float] = {}


def duration(zygote: Zygote) -> float:
    """How long an undisturbed run takes, from its start to its process being gone."""
    if zygote.address not in _seconds:
        undisturbed(zygote, LONG)
        with fresh(zygote) as ground:
            began = time.monotonic()
            run = ground.submit(LONG, NONE)
            ground.wait_until_gone(ground.pid(run))
            _seconds[zygote.address] = time.monotonic() - began
    return _seconds[zygote.address]
