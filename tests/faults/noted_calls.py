"""What a piece of work asks of the disk when nothing is refused: the calls that are then refused in turn."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.disk import KILL
from tests.faults.ground import Ground, fresh
from tests.faults.trial import NotPossibleError
from tests.faults.zygote import Fault, Zygote

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
