"""What a forked process does: train a run, look after the queue as a server does, or press a button as a visitor does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults import ground
from tests.faults.zygote import spawn_by
from xformer.errors import XformerError
from xformer.training import jobs, worker
from xformer.training.executors import process as processes
from xformer.training.run_store import RunStore


def train(lock: int, *, address: str, folder: str, run: str, token: str, log: str) -> int:
    """Be the worker of a run."""
    processes.spawn = spawn_by(address)
    worker.lower_priority = lambda entry: None  # the machine may be busy
    return worker.main([run, "--folder", folder, "--token", token, "--lock", str(lock)])


def reconcile(*, address: str, folder: str, seconds: float) -> int:
    """Be a server: tend the run store in a loop."""
    processes.spawn = spawn_by(address)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(XformerError, OSError):  # as the server's own loop
            jobs.reconcile(RunStore(folder))
        time.sleep(0.05)
    return 0


def press(*, address: str, folder: str, result: str) -> int:
    """Be a tab: press Start, and write down what came of it."""
    processes.spawn = spawn_by(address)
    try:
        answer = {"answer": jobs.submit(RunStore(folder), ground.SHORT)}
    except XformerError as error:
        answer = {"error": str(error)}
    Path(f"{result}.part").write_text(json.dumps(answer))
    os.replace(f"{result}.part", result)
    return 0


TASKS: dict[str, Callable[..., int]] = {"worker": train, "reconcile": reconcile, "press": press}
