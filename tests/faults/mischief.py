"""What is done to a process from within, by name: hanging, a clock that runs backwards, memory that is not there."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable

import torch

from xformer.training import loop, worker

_real_time = time.time


def hang_at(step: int, *, deaf: bool = False) -> None:
    """A step that never ends; `deaf` to SIGTERM too."""
    train_step = loop.Run.train_step

    def hanging(run: loop.Run) -> None:
        if run.step == step:
            while True:
                time.sleep(3600)
        train_step(run)

    loop.Run.train_step = hanging
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def hang_at_the_last_save() -> None:
    """A worker that obeys, and never comes back from writing down where it stands."""
    save_state = loop.Run.save_state

    def hanging(run: loop.Run) -> None:
        save_state(run)
        if run.step % run.config.snapshot_every:
            time.sleep(3600)

    loop.Run.save_state = hanging


def hang_at_the_start() -> None:
    """A worker that has its run, and never begins."""
    worker._train = lambda *_: time.sleep(3600)  # pyright: ignore[reportAttributeAccessIssue]


def slow(seconds: float) -> None:
    """Steps that take their time."""
    train_step = loop.Run.train_step

    def slowed(run: loop.Run) -> None:
        time.sleep(seconds)
        train_step(run)

    loop.Run.train_step = slowed


def clock_backwards() -> None:
    """Each look at the clock is an hour earlier than the one before."""
    looks = iter(range(10**9))
    time.time = lambda: _real_time() - 3600 * next(looks)


def clock_an_hour_back() -> None:
    """The clock was set back by an hour some seconds after this process began."""
    began = time.monotonic()
    time.time = lambda: _real_time() - (3600 if time.monotonic() - began > 1 else 0)


def little_memory() -> None:
    """No more than a little memory besides what is taken already: the allocator refuses."""
    torch.zeros(1)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 300_000_000,) * 2)


FUNCTIONS = (
    hang_at,
    hang_at_the_last_save,
    hang_at_the_start,
    slow,
    clock_backwards,
    clock_an_hour_back,
    little_memory,
)
MISCHIEF: dict[str, Callable[..., None]] = {function.__name__: function for function in FUNCTIONS}
