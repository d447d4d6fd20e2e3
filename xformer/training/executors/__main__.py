"""The relay, a process that synchronises a run store with a Ray cluster: `python -m xformer.training.executors …`.

It is separate from the server because Ray terminates every process that loses the head of its cluster for some time. Each run
store has one relay, which holds a lock file; any server starts it if it is missing. It exits once its server has ended and no
run is waiting or in training.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from xformer.errors import MissingLibraryError, RunStoreError, XformerError
from xformer.training import executors
from xformer.training.executors.relay import Status, answers, is_on_ray, ray_address
from xformer.training.run_store import RunStore, entry_of, has_stop, set_columns

POLL_SECONDS = 0.25
RETRY_SECONDS = 2.0
"""Seconds between two attempts to reach the cluster."""
HANGING_SECONDS = 180.0
"""Timeout of one round, after which this process exits and is restarted."""
AWAY = "The Ray cluster cannot be reached. The run continues there, or resumes when the cluster is back."
AWAY_STOPPED = "The Ray cluster could not be reached. Resume continues from the last state that was saved here."


def main(arguments: list[str] | None = None) -> None:
    """Synchronise the run store with the cluster until nothing is left to do."""
    parser = argparse.ArgumentParser(prog="python -m xformer.training.executors")
    parser.add_argument("--folder", required=True, help="the folder of the run store")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of the lock file, held until the end")
    parser.add_argument("--server", type=int, default=os.getppid(), help="the id of the process that started this one")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.lock, True)
    store = RunStore(options.folder)

    def restart(problem: str) -> None:
        print(problem, file=sys.stderr, flush=True)
        away(store, problem)
        time.sleep(RETRY_SECONDS)
        same_options = ["--folder", options.folder, "--lock", str(options.lock), "--server", str(options.server)]
        # A new process, because Ray cannot connect to a second head in a process that has lost the first.
        os.execv(sys.executable, [sys.executable, "-m", "xformer.training.executors", *same_options])

    problem = attend(store, options.server, restart)
    with suppress(RunStoreError):
        if not problem or _is_done(store, options.server):
            return
    restart(problem)


def attend(store: RunStore, server: int, restart: Callable[[str], None]) -> str:
    """Manage the runs while the cluster can be reached. Returns an error message, or "" when nothing is left to do.

    A separate thread calls `restart` when the head is gone, because Ray's own calls would wait a minute for it.
    """
    address = ray_address()
    problem = f"The Ray cluster at {address} cannot be reached."
    if ":" in address and not answers(address):
        return problem
    faulthandler.dump_traceback_later(HANGING_SECONDS, exit=True)
    try:
        from xformer.training.executors.cluster import RayCluster  # imported here because these need torch and Ray
        from xformer.training.executors.ray import RayExecutor

        cluster = RayCluster(address)
        threading.Thread(target=_watch, args=(cluster.head, lambda: restart(problem)), daemon=True).start()
        executor = RayExecutor(store, cluster)
        while store.database.file.exists():  # until the store is removed
            faulthandler.dump_traceback_later(HANGING_SECONDS, exit=True)
            with suppress(RunStoreError, OSError):  # such as a full disk, which the pages report
                executor.round(starts=executors.chosen() == executors.RAY)
                cluster.status(address, executor.nodes).write(store.folder)
                if _is_done(store, server):
                    return ""
            time.sleep(POLL_SECONDS)
        return ""
    except MissingLibraryError as error:
        return f"{error}."
    except Exception:  # any error of Ray; a new process tries again
        traceback.print_exc()
        return problem


def _watch(head: str, leave: Callable[[], None]) -> None:
    while answers(head) or answers(head):
        time.sleep(POLL_SECONDS)
    leave()


def _is_done(store: RunStore, server: int) -> bool:
    """Return whether the server has ended and no run is waiting or on the cluster."""
    return os.getppid() != server and not any(run.state == "queued" or is_on_ray(run) for run in store.entries())


def away(store: RunStore, problem: str) -> None:
    """Record in the cluster's runs that it cannot be reached, and release the runs that have a pending stop."""
    faulthandler.cancel_dump_traceback_later()
    Status(ray_address(), problem).write(store.folder)
    with suppress(XformerError, OSError):
        for entry in store.entries():
            if not is_on_ray(entry):
                continue
            with store.database.writing() as db:
                is_to_stop, now = has_stop(db, entry.id), entry_of(db, entry.id)
                if now.is_active and now.message != AWAY:
                    set_columns(db, entry.id, message=AWAY)
            if is_to_stop:
                from xformer.training.worker import release  # imported here because it needs torch

                release(store, entry.id, str(entry.worker), "stopped", AWAY_STOPPED)


if __name__ == "__main__":
    main()
