"""The executor `process`: a detached process on this machine for each run, `python -m xformer.training.worker`.

A worker reads its commands from the run store and writes its progress to it, so the executor has nothing to forward. A lock
file shows whether the worker is alive; see `liveness`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from xformer.training import liveness
from xformer.training.executors import Executor, Resources
from xformer.training.liveness import mark_dead
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore

LOG = "worker.log"


class ProcessExecutor(Executor):
    """Trains runs in processes on this machine. The caller of `submit` holds the run's lock, which the process inherits."""

    def __init__(self, store: RunStore, lock: int = -1) -> None:
        self.store, self.lock = store, lock

    def submit(self, entry: RunRecord, needs: Resources) -> None:
        """Start the worker. `needs` is ignored, because the limits were checked when the run was submitted."""
        spawn(self.store, entry.id, str(entry.worker), self.lock)

    def poll(self, entry: RunRecord) -> None:
        """Record a worker that has died, and kill one that does not stop or never begins."""
        mark_dead(self.store, entry)


def spawn(store: RunStore, run: str, token: str, lock: int) -> None:
    """Start the worker of a run as a detached process, which outlives this one and inherits the lock."""
    arguments = [run, "--folder", str(store.folder.resolve()), "--token", token, "--lock", str(lock)]
    with open(store.folder_of(run) / LOG, "ab") as log:
        detached("xformer.training.worker", arguments, log, lock)


def detached(module: str, arguments: list[str], log: Any, lock: int) -> None:
    """Start a module as a process that outlives this one and holds a lock."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(lock,),
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()  # reap it, so that it does not remain as a zombie
    liveness.sign(lock, process.pid)
