"""A server without pages: `python -m tests.faults.server FOLDER N` starts N runs and manages the run store until killed."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from xformer.errors import XformerError
from xformer.training import jobs
from xformer.training.run_store import RunStore


def main() -> None:
    """Print "ready", submit the runs, then reconcile the run store repeatedly, as a server does."""
    store, n = RunStore(sys.argv[1]), int(sys.argv[2])
    if n:
        from tests.faults.processes import SETTINGS  # imported here because it needs torch

        print("ready", flush=True)
        for _ in range(n):
            jobs.submit(store, SETTINGS, device="cpu")
    while True:
        with suppress(XformerError, OSError):  # as in the real server
            jobs.reconcile(store)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
