"""A real Ray cluster of one node in a separate network namespace. `python -m tests.faults.ray` also kills nodes and servers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import loopback
from tests.training.tiny import tiny_preset
from xformer.training import jobs
from xformer.training.executors.relay import RELAY_LOG, Status
from xformer.training.loop import read_state
from xformer.training.run_store import RunStore

ROOT = Path(__file__).parents[3]
PATIENCE = 240.0
ENDLESS = tiny_preset(steps=100_000, log_every=10, snapshot_every=20)


@contextmanager
def cluster_of(store: RunStore) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a cluster and a server for this run store, and yield a function that waits until a condition holds."""
    folder = store.folder.parent
    with open(folder / "out", "wb") as out:  # a pipe would stay open while any child process is left
        python = [sys.executable, "-m"]
        command = [*python, "tests.loopback", *python, "tests.training.executors.ray_site", str(folder)]
        site = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out)

    def wait_until(holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if site.poll() == loopback.NOT_PERMITTED:
                pytest.skip("NOT RUN: a Ray cluster needs a separate network namespace, which is not permitted here")
            if site.poll() is not None or time.monotonic() > deadline:
                logs = [folder / "out", store.folder / RELAY_LOG]
                pytest.fail("\n".join(file.read_text("utf-8", "replace")[-4_000:] for file in logs if file.exists()))
            time.sleep(0.1)

    try:
        yield wait_until
    finally:
        site.communicate()


def test_run_is_trained_on_a_node_and_stopped_there() -> None:
    # Ray limits the paths of sockets to 107 characters.
    with tempfile.TemporaryDirectory(prefix="xf-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        store = RunStore(Path(folder) / "runs")
        run = store.add(ENDLESS, device="cpu")
        with cluster_of(store) as wait_until:
            wait_until(lambda: (entry := store.entry(run)).step >= 20 and entry.pid is not None)
            entry = store.entry(run)
            assert (entry.state, entry.device, entry.message) == ("running", "cpu", "")
            jobs.stop(store, run)
            wait_until(lambda: not store.entry(run).is_active)
            entry = store.entry(run)
            assert (entry.state, entry.message) == ("stopped", "")
            assert read_state(store.folder_of(run)).values["step"] == entry.step >= 20
            assert [row["step"] for row in store.rows(run)] == [*range(10, entry.step + 1, 10)]
            wait_until(lambda: (found := Status.read(store.folder)) and found.cpus == found.free_cpus >= 1)
        left = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # the process has just ended
                left += [file] if file.stat().st_uid == os.getuid() and folder.encode() in file.read_bytes() else []
        assert not left
