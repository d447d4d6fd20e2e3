"""The executor `process`: a detached process of this machine for each run, `python -m xformer.training.worker`.

A worker reads its commands from the run store and writes what it does there, so there is nothing to pass on. A lock file tells
whether it is alive; see `liveness`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from xformer.training import liveness
from xformer.training.entry import Entry
from xformer.training.executors import Executor, Resources
from xformer.training.liveness import LOCK, mark_dead
from xformer.training.run_store import RunStore

LOG = "worker.log"
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Environment of a worker: glibc keeps freed memory for the next step. Without it the kernel gives a sweep thousands of zeroed
pages a step, which takes a quarter of its time."""


class ProcessExecutor(Executor):
    """Trains runs in processes of this machine. The caller of `submit` holds the run's lock, which the process inherits."""

    def __init__(self, store: RunStore, lock: int = -1) -> None:
        self.store, self.lock = store, lock

    def submit(self, entry: Entry, needs: Resources) -> None:
        """Start the worker. What it needs was checked when the run was asked for."""
        spawn(self.store, entry.id, str(entry.worker), self.lock)

    def poll(self, entry: Entry) -> None:
        """Record a worker that has died, and kill one that does not stop or never begins."""
        mark_dead(self.store, entry)

    def command(self, entry: Entry) -> None:
        """Do nothing: a worker reads the run store itself."""

    def cancel(self, entry: Entry) -> None:
        """Kill the worker."""
        file = self.store.folder_of(entry.id) / LOCK
        if liveness.is_held(file) and (pid := liveness.holder(file)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


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
        env=KEEP_MEMORY | os.environ,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()  # or it would stay as a zombie of this process
    liveness.sign(lock, process.pid)
