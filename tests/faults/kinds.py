"""Every kind of fault there is, with how much of it the long and the short form try."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.faults import disk_faults, kill_faults, process_faults, server_faults, sweep_faults
from tests.faults.ground import Trial
from tests.faults.zygote import Zygote


@dataclass(frozen=True)
class Kind:
    """Faults of one kind: `trials(zygote, amount, draw)`; the amount is how many, or for calls every how-manieth.

    The short form leaves out a kind whose `short` is 0.
    """

    name: str
    trials: Callable[[Zygote, int, random.Random], Iterator[Trial]]
    long: int
    short: int = 0


def _calls(trials: Callable[..., Iterator[Trial]], way: str) -> Callable[[Zygote, int, random.Random], Iterator[Trial]]:
    return lambda zygote, every, draw: trials(zygote, way, every, draw)


END, SPACE = "the process ends", "no space"
KINDS = [
    Kind("worker: kill -9 at a random moment", kill_faults.kills, 200, 1),
    Kind("worker: SIGTERM", kill_faults.terms, 30, 1),
    *(
        Kind(f"worker's calls on the disk: {way}", _calls(disk_faults.calls, way), 1, 73 if way in (END, SPACE) else 0)
        for way in disk_faults.WAYS
    ),
    *(
        Kind(f"server's calls on the disk: {way}", _calls(server_faults.presses, way), 1, 59 if way == END else 0)
        for way in server_faults.WAYS
    ),
    Kind("server: killed and started again in the middle of a run", server_faults.restarts, 10),
    Kind("sweep: its process or the server killed, at any moment", sweep_faults.sweeps, 30),
    Kind("stop: obeyed in five seconds, nothing left running", process_faults.stops, 20, 1),
]
