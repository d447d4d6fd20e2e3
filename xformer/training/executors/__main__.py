"""The process that keeps a run store and a Ray cluster together: `python -m xformer.training.executors …`.

It is not the server, as Ray ends every process that has lost the head of its cluster for a while. There is one for each run
store, which holds a lock file; every server starts it where it is missing. It ends when its server has ended and no run waits
or is trained.
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
"""Seconds for which one round may last. Then this process ends, and is started again."""
AWAY = "The Ray cluster cannot be reached. The run goes on there, or is resumed when the cluster is back."
AWAY_STOPPED = "The Ray cluster could not be reached. Resume goes on from the last state that was saved here."


def main(arguments: list[str] | None = None) -> None:
    """Keep them together until nothing is left to do."""
    parser = argparse.ArgumentParser(prog="python -m xformer.training.executors")
    parser.add_argument("--folder", required=True, help="the folder of the run store")
    parser.add_argument("--lock", type=int, required=True, help="the open lock file; held until this process ends")
    parser.add_argument("--server", type=int, default=os.getppid(), help="the process that started this one")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.lock, True)
    store = RunStore(options.folder)

    def begin_anew(problem: str) -> None:
        print(problem, file=sys.stderr, flush=True)
        away(store, problem)
        time.sleep(RETRY_SECONDS)
        given = ["--folder", options.folder, "--lock", str(options.lock), "--server", str(options.server)]
        # A fresh process, as Ray cannot connect to a second head in one that has lost the first.
        os.execv(sys.executable, [sys.executable, "-m", "xformer.training.executors", *given])

    problem = attend(store, options.server, begin_anew)
    with suppress(RunStoreError):
        if not problem or _is_done(store, options.server):
            return
    begin_anew(problem)


def attend(store: RunStore, server: int, begin_anew: Callable[[str], None]) -> str:
    """Look after the runs as long as the cluster can be reached. Returns what went wrong, or "" when nothing is left to do.

    A thread calls `begin_anew` when the head is gone, as the calls of Ray wait for it for a minute.
    """
    address = ray_address()
    problem = f"The Ray cluster at {address} cannot be reached."
    if ":" in address and not answers(address):
        return problem
    faulthandler.dump_traceback_later(HANGING_SECONDS, exit=True)
    try:
        from xformer.training.executors.cluster import RayCluster  # only now: these need torch and Ray
        from xformer.training.executors.ray import RayExecutor

        cluster = RayCluster(address)
        threading.Thread(target=_watch, args=(cluster.head, lambda: begin_anew(problem)), daemon=True).start()
        executor = RayExecutor(store, cluster)
        while store.database.file.exists():  # else the store has been removed
            faulthandler.dump_traceback_later(HANGING_SECONDS, exit=True)
            with suppress(RunStoreError, OSError):  # a full disk: the pages say so, and it may pass
                executor.round(starts=executors.chosen() == executors.RAY)
                cluster.status(address, executor.nodes).write(store.folder)
                if _is_done(store, server):
                    return ""
            time.sleep(POLL_SECONDS)
        return ""
    except MissingLibraryError as error:
        return f"{error}."
    except Exception:  # any error of Ray: a fresh process tries again
        traceback.print_exc()
        return problem


def _watch(head: str, leave: Callable[[], None]) -> None:
    while answers(head) or answers(head):
        time.sleep(POLL_SECONDS)
    leave()


def _is_done(store: RunStore, server: int) -> bool:
    """Return whether the server has ended, and no run waits or is on the cluster."""
    return os.getppid() != server and not any(of.state == "queued" or is_on_ray(of) for of in store.entries())


def away(store: RunStore, problem: str) -> None:
    """Say so in the runs that are there, and let go of those that are to stop."""
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
                from xformer.training.worker import leave  # only here: it needs torch

                leave(store, entry.id, str(entry.worker), "stopped", AWAY_STOPPED)


if __name__ == "__main__":
    main()
