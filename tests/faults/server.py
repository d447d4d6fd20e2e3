"""A server without pages: `python -m tests.faults.server FOLDER N` starts N runs and tends the run store until killed."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from xformer.errors import XformerError
from xformer.training import jobs
from xformer.training.run_store import RunStore


def main() -> None:
    """Say so, submit the runs, then do what a server does every second."""
    store, n = RunStore(sys.argv[1]), int(sys.argv[2])
    if n:
        from tests.faults.processes import SETTINGS  # only here: a server that starts no run does without torch

        print("ready", flush=True)
        for _ in range(n):
            jobs.submit(store, SETTINGS, device="cpu")
    while True:
        with suppress(XformerError, OSError):  # as the server's own loop
            jobs.reconcile(store)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
