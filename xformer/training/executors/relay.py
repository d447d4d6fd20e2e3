"""Start the relay, the process that synchronises a run store with a Ray cluster, and read its status.

The relay is `python -m xformer.training.executors`. It is not a thread of the server, because Ray terminates every process
that loses the head of its cluster for some time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from xformer.files import write_atomically
from xformer.training import executors, liveness
from xformer.training.executors.process import detached
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore

ADDRESS = "XFORMER_RAY_ADDRESS"
RELAY_LOCK, RELAY_LOG = "ray.lock", "ray.log"
STATUS = "ray.json"


def ray_address(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the cluster: "10.0.0.5:6379", or "auto" for the cluster that this machine belongs to."""
    return environment.get(ADDRESS) or "auto"


def is_on_ray(entry: RunRecord) -> bool:
    """Return whether a run is assigned to the cluster."""
    return entry.is_active and entry.node is not None


def uses_ray(entries: Iterable[RunRecord]) -> bool:
    """Return whether the relay is needed: Ray is the chosen executor, or the cluster still has runs."""
    return executors.chosen() == executors.RAY or any(map(is_on_ray, entries))


def answers(address: str) -> bool:
    """Return whether an address like "10.0.0.5:6379" accepts connections. Ray's own calls would wait for a minute."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError):
        socket.create_connection((host, int(port)), timeout=2).close()
        return True
    return False


@dataclass(frozen=True)
class Status:
    """The status of the cluster."""

    address: str = ""
    problem: str = ""
    """One sentence on why the cluster cannot be used; empty if it can."""
    nodes: float = 0
    cpus: float = 0.0
    free_cpus: float = 0.0
    gpus: float = 0.0
    free_gpus: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the status of the cluster of a run store; None if no relay is running."""
        if not liveness.is_held(folder / RELAY_LOCK):
            return None
        try:
            return cls(**json.loads((folder / STATUS).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Write the status for the pages if it has changed. On a full disk the old status remains."""
        content = json.dumps(asdict(self)).encode()
        with suppress(OSError):
            if not (folder / STATUS).is_file() or (folder / STATUS).read_bytes() != content:
                write_atomically(folder / STATUS, content)


def start_relay(store: RunStore) -> None:
    """Start the process that manages the runs on a Ray cluster, unless it is running."""
    store.folder.mkdir(parents=True, exist_ok=True)
    lock = liveness.take(store.folder / RELAY_LOCK)
    if lock is None:
        return
    try:
        with open(store.folder / RELAY_LOG, "wb") as log:  # overwrite the previous log, which may be long
            arguments = ["--folder", str(store.folder.resolve()), "--lock", str(lock)]
            detached("xformer.training.executors", arguments, log, lock)
    finally:
        os.close(lock)
