"""Processes that hang, that several people command at once, whose clock runs backwards, that have no memory left."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

from tests.faults.ground import LONG, SHORT, fresh
from tests.faults.kill_faults import SLOW
from tests.faults.trial import Trial
from tests.faults.zygote import Fault, Zygote
from tests.training.tiny import tiny_preset
from xformer.errors import RunStoreError
from xformer.training import jobs

HANGING = {
    "a worker that obeys": SLOW,
    "a step that never ends": Fault(mischief={"hang_at": {"step": 20}}),
    "a step that never ends, deaf to signals": Fault(mischief={"hang_at": {"step": 20, "deaf": True}}),
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


def pauses(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A paused run makes room for another one, and gets resume, step or a kill at a random moment."""
    for _ in range(n):
        what = draw.choice(("resume", "step", "kill"))
        yield Trial(f"{what} while a paused run makes room", partial(_pause, zygote, what, draw.uniform(0, 0.8)))


def _pause(zygote: Zygote, what: str, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        ground.store.send(run, "pause")
        ground.wait(run, "a pause", lambda entry: entry.state == "paused", reconcile=False)
        other = ground.submit(SHORT)
        time.sleep(moment)
        if what == "kill":
            ground.kill(run)
        elif what == "step" and ground.store.entry(run).is_active:
            try:
                ground.store.send(run, "step")
            except RunStoreError:  # it has left in this very moment
                assert not ground.store.entry(run).is_active
        else:
            ground.resume(run)
        ground.wait_for_end(other)
        entry = ground.store.entry(run)
        assert entry.state in ("paused", "queued", "running", "interrupted", "finished"), entry.state
        if entry.is_active or entry.state == "queued":
            ground.wait(run, "rest", lambda entry: entry.state in ("paused", "finished", "interrupted"))
        ground.assert_survived(run, LONG)
        ground.assert_survived(other, SHORT)


def rates(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A learning rate chosen while it runs, and a kill some time later: the settings in the run store tell the whole run."""
    for _ in range(n):
        moments = draw.uniform(0.1, 0.6), draw.uniform(0, 0.6)
        yield Trial(f"a new learning rate, and a kill {moments[1]:.2f} s later", partial(_rate, zygote, moments))


def _rate(zygote: Zygote, moments: tuple[float, float]) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        time.sleep(moments[0])
        ground.store.send(run, "rate", 0.02)
        ground.wait(run, "a new rate", lambda entry: bool(entry.train["lr_changes"]))
        time.sleep(moments[1])
        ground.kill(run)
        assert ground.wait_for_rest(run).state in ("interrupted", "finished")
        ground.assert_survived(run, ground.store.entry(run).settings())


def clocks(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The clock on the wall runs backwards, for the worker and for the server."""
    tries = {
        "a clock that runs backwards, and a kill": lambda: _clock(zygote, draw.uniform(0, 0.5)),
        "a clock set back after a stop without a worker": lambda: _clock_and_stop(zygote),
    }
    for name in in_turn(list(tries), n, draw):
        yield Trial(name, tries[name])


BACKWARDS = Fault(mischief={"clock_backwards": {}})


def _clock(zygote: Zygote, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, BACKWARDS)
        ground.server(BACKWARDS)
        time.sleep(moment)
        ground.kill(run)
        entry = ground.wait(run, "rest", lambda entry: not entry.is_active, reconcile=False)
        if entry.state != "finished":
            ground.resume(run, BACKWARDS)
        ground.wait_for_end(run, reconcile=False)
        ground.assert_survived(run, LONG)


def _clock_and_stop(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, Fault(mischief={"hang_at": {"step": 20}}))
        ground.server(Fault(mischief={"clock_an_hour_back": {}}))
        jobs.stop(ground.store, run)
        assert ground.wait(run, "a stop", lambda entry: not entry.is_active, reconcile=False).state == "stopped"
        ground.assert_survived(run, LONG)


def giant_batches(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A batch that no memory can hold."""
    for _ in range(n):
        yield Trial("a batch that no memory can hold", partial(_giant_batch, zygote, draw.choice((49_152, 65_536))))


def _giant_batch(zygote: Zygote, size: int) -> None:
    with fresh(zygote) as ground:
        giant = tiny_preset(batch_size=size, model={"d_ff": 1024})
        run = ground.submit(giant, Fault(mischief={"little_memory": {}}))
        entry = ground.wait_for_rest(run)
        assert entry.state == "failed"
        assert f"try a smaller batch (it was {size}, try {size // 4})" in entry.message, entry.message
        ground.assert_whole(run)
