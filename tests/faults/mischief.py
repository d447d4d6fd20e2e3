"""What is done to a process from within, by name: hanging, at several places, and steps that take their time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from xformer.training import loop, worker


def hang_at(step: int) -> None:
    """A step that never ends, deaf to SIGTERM."""
    train_step = loop.Run.train_step

    def hanging(run: loop.Run) -> None:
        if run.step == step:
            while True:
                time.sleep(3600)
        train_step(run)

    loop.Run.train_step = hanging
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


FUNCTIONS = (hang_at, hang_at_the_last_save, hang_at_the_start, slow)
MISCHIEF: dict[str, Callable[..., None]] = {function.__name__: function for function in FUNCTIONS}
