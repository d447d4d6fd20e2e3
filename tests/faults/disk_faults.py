"""A disk that refuses each of a worker's calls in turn, for a moment or from there on."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial

from tests.faults.disk import FOR_EVER, KILL
from tests.faults.ground import SHORT, Ground, NotPossibleError, Trial, fresh
from tests.faults.zygote import Fault, Zygote

WAYS = {
    "the process ends": (KILL, 1),
    "no space": (errno.ENOSPC, 1),
    "no space for ten calls": (errno.ENOSPC, 10),
    "no space from there on": (errno.ENOSPC, FOR_EVER),
    "an input/output error": (errno.EIO, 1),
    "read-only from there on": (errno.EROFS, FOR_EVER),
    "no permission from there on": (errno.EACCES, FOR_EVER),
}


def calls(zygote: Zygote, way: str, every: int, draw: random.Random) -> Iterator[Trial]:
    """Each call of a worker on the files of the run store and of its run, every `every`-th from a random one on."""
    names = calls_of(zygote, "a worker", _whole_run)
    for at in range(1 + draw.randrange(every), len(names) + 1, every):
        yield Trial(f"{way} at call {at}: {names[at - 1]}", partial(_refuse, zygote, way, at))


def _refuse(zygote: Zygote, way: str, at: int) -> None:
    error, n = WAYS[way]
    with fresh(zygote) as ground:
        run = ground.submit(SHORT, Fault(calls=(at, at + n - 1, error)))
        ground.wait_until_gone(ground.pid(run))
        entry = ground.wait_for_rest(run)
        assert entry.state in ("interrupted", "failed", "finished"), entry.state
        ground.assert_whole(run, is_at_work=True)
        ground.assert_survived(run, SHORT)


def _whole_run(ground: Ground, fault: Fault) -> str:
    run = ground.submit(SHORT, fault)
    ground.wait_for_end(run)
    ground.wait_until_gone(ground.pid(run))
    return run


_noted: dict[tuple[str, str], list[str]] = {}


def calls_of(zygote: Zygote, name: str, work: Callable[[Ground, Fault], str]) -> list[str]:
    """The calls in order, worked out once; `work` returns the run that it is about."""
    if not zygote.can_refuse:
        raise NotPossibleError("there is no C compiler for the library that refuses")
    if (zygote.address, name) not in _noted:
        log = zygote.folder / f"calls of {name}"
        with fresh(zygote) as ground:
            run = work(ground, Fault(calls=(0, 0, KILL), log=str(log)))
        _noted[zygote.address, name] = [line.replace(run, "RUN") for line in log.read_text().splitlines()]
    return _noted[zygote.address, name]
