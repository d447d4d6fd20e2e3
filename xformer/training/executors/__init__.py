"""Executors train the runs of the run store, which remains the single source of truth.

    process   a process on this machine for each run; the default
    ray       an actor of a Ray cluster for each run, or for each batch of a sweep

`XFORMER_EXECUTOR` selects the executor, and `XFORMER_RAY_ADDRESS` is the address of the cluster.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from xformer.errors import ConfigError
from xformer.training.run_record import RunRecord

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
    """The resources that a run needs during training.

    Example:
        >>> Resources(gpus=1).cpus
        1
    """

    cpus: int = 1
    gpus: int = 0
    memory: int = 0
    """The estimated peak memory in bytes; 0 to reserve none."""

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.memory) < 0:
            raise ConfigError(f"Resources must be 0 or more, got {self}; for example Resources(cpus=1, memory=10**9).")


class Executor(ABC):
    """Trains the runs that the run store assigns to it: active entries with a token in `worker`."""

    @abstractmethod
    def submit(self, entry: RunRecord, needs: Resources) -> None:
        """Start training a run from the last state in its folder. Repeated calls have no effect."""

    @abstractmethod
    def poll(self, entry: RunRecord) -> None:
        """Update the run store with the progress of a run, including its end."""
