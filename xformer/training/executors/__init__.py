"""Executors: what computes the runs of the run store. The store stays the truth; an executor only computes.

    process   a process of this machine for each run, the default
    ray       an actor of a Ray cluster for each run, and for each batch of a sweep

`XFORMER_EXECUTOR` chooses, `XFORMER_RAY_ADDRESS` says where the cluster is.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from xformer.errors import ConfigError
from xformer.training.entry import Entry

PROCESS, RAY = "process", "ray"
VARIABLE = "XFORMER_EXECUTOR"


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the executor that starts waiting runs.

    Raises:
        ConfigError: There is no executor of that name.

    Example:
        >>> chosen({"XFORMER_EXECUTOR": "ray"}), chosen({})
        ('ray', 'process')
    """
    name = environment.get(VARIABLE) or PROCESS
    if name not in (PROCESS, RAY):
        raise ConfigError(f"{VARIABLE} must be {PROCESS} or {RAY}, got {name!r:.40}; for example {RAY}.")
    return name


@dataclass(frozen=True)
class Resources:
    """What a run needs while it is trained.

    Example:
        >>> Resources(gpus=1).cpus
        1
    """

    cpus: int = 1
    gpus: int = 0
    memory: int = 0
    """The estimated peak in bytes; 0 where nothing is reserved."""

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.memory) < 0:
            raise ConfigError(f"Resources must be 0 or more, got {self}; for example Resources(cpus=1, memory=10**9).")


class Executor(ABC):
    """Computes runs that the run store has given to it: an active entry with a token in `worker`."""

    @abstractmethod
    def submit(self, entry: Entry, needs: Resources) -> None:
        """Have a run computed from the last state in its folder. Repeating it starts nothing twice."""

    @abstractmethod
    def poll(self, entry: Entry) -> None:
        """Bring the run store up to date with what has happened to a run, its end included."""

    @abstractmethod
    def command(self, entry: Entry) -> None:
        """Pass on the commands that wait in the run store."""

    @abstractmethod
    def cancel(self, entry: Entry) -> None:
        """End the computation at once, between any two instructions. What was saved before is whole."""
