"""Processes that hang when a stop is sent."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

from tests.faults.ground import LONG, Trial, fresh
from tests.faults.kill_faults import SLOW
from tests.faults.zygote import Fault, Zygote
from xformer.training import jobs

HANGING = {
    "a worker that obeys": SLOW,
    "a step that never ends, deaf to signals": Fault(mischief={"hang_at": {"step": 20}}),
    "a worker that obeys and hangs while it saves": Fault(mischief=SLOW.mischief | {"hang_at_the_last_save": {}}),
    "a worker that never begins": Fault(mischief={"hang_at_the_start": {}}),
}
SECONDS = 5.0
"""In which a stop is obeyed."""


def stops(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A stop is obeyed within five seconds, and no process is left."""
    for name in in_turn(list(HANGING), n, draw):
        yield Trial(f"a stop for {name}", partial(_stop, zygote, HANGING[name], draw.uniform(0, 1)))


def in_turn(names: list[str], n: int, draw: random.Random) -> Iterator[str]:
    """`n` names, each as often as the others, from a random one on."""
    first = draw.randrange(len(names))
    return (names[(first + number) % len(names)] for number in range(n))


def _stop(zygote: Zygote, fault: Fault, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, fault)
        ground.server()
        pid = ground.pid(run)
        time.sleep(moment)
        jobs.stop(ground.store, run)
        sent = time.monotonic()
        entry = ground.wait(run, "an end", lambda entry: not entry.is_active, reconcile=False)
        took = time.monotonic() - sent
        assert entry.state == "stopped" or (entry.state, entry.step) == ("finished", 160), entry.state
        assert took < SECONDS, f"a stop took {took:.1f} s"
        ground.wait_until_gone(pid)
        ground.assert_whole(run, is_at_work=True)
        ground.assert_survived(run, LONG)
