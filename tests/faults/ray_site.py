"""A Ray cluster of simulated nodes on this machine, a run store, and its server; each of them can be killed.

python -m tests.faults.ray_site FOLDER      one node and a server, until standard input ends; for the test suite
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from xformer.presets import Preset
from xformer.training import executors, jobs, liveness
from xformer.training.entry import Entry
from xformer.training.executors.relay import ADDRESS, RELAY_LOCK
from xformer.training.run_store import RunStore

PATIENCE = 240.0
"""Seconds after which something that was waited for is taken as not happening."""
MEMORY = 80 * 1024**2
"""Bytes of a node's object store: next to the least that Ray takes."""
SERVER = """
import sys, time
from contextlib import suppress
from xformer.errors import XformerError
from xformer.training import jobs
from xformer.training.run_store import RunStore
while True:
    with suppress(XformerError, OSError):
        jobs.reconcile(RunStore(sys.argv[1]))
    time.sleep(0.2)
"""


class Site:
    """A cluster and a run store. Without nodes, the head is the one node."""

    def __init__(self, folder: Path, *, nodes: int = 2, cpus: int = 1) -> None:
        self.folder, self.cpus = folder, cpus
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.store = RunStore(folder / "runs")
        self.servers: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[str, Any] = {}
        self.made = 0
        self.clusters: list[Cluster] = []
        os.environ |= {executors.VARIABLE: executors.RAY, ADDRESS: f"127.0.0.1:{self.port}"}
        self.start_head(cpus=0 if nodes else cpus)
        for _ in range(nodes):
            self.add_node()

    @property
    def cluster(self) -> Cluster:
        return self.clusters[-1]

    def start_head(self, cpus: int = 0) -> None:
        """A head, on the port of the last one, by default without processors."""
        how = {
            "num_cpus": cpus,
            "object_store_memory": MEMORY,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
            "gcs_server_port": self.port,
        }
        self.clusters.append(Cluster(initialize_head=True, head_node_args=how | {"node_name": "head"}))

    def add_node(self) -> None:
        self.made += 1
        name = f"node-{self.made}"
        how: dict[str, Any] = {"num_cpus": self.cpus, "object_store_memory": MEMORY, "node_name": name}
        self.nodes[name] = self.cluster.add_node(**how)

    def kill_node(self, name: str) -> None:
        """SIGKILL to all processes of a node."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def kill_head(self) -> None:
        """SIGKILL to the head; the nodes stay for as long as they can."""
        self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)

    def serve(self) -> None:
        """Start a server."""
        command = [sys.executable, "-c", SERVER, str(self.store.folder)]
        self.servers.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))

    def kill_servers(self) -> None:
        """SIGKILL to the servers, and to the process that keeps the store and the cluster together."""
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers = []
        lock = self.store.folder / RELAY_LOCK
        if liveness.is_held(lock) and (pid := liveness.holder(lock)):
            os.kill(pid, signal.SIGKILL)
            wait("the relay to be gone", lambda: not liveness.is_held(lock))

    def close(self) -> None:
        self.kill_servers()
        for cluster in self.clusters:
            cluster.shutdown()

    def submit(self, settings: Preset, **how: Any) -> str:
        return jobs.submit(self.store, settings, device="cpu", **how)

    def wait(self, run: str, what: str, holds: Callable[[Entry], object]) -> Entry:
        """Wait until something holds of a run."""
        wait(f"{what} of {run}", lambda: holds(self.store.entry(run)), lambda: str(self._told(run)))
        return self.store.entry(run)

    def _told(self, run: str) -> tuple[Any, ...]:
        entry = self.store.entry(run)
        log = (self.store.folder / "ray.log").read_text()[-2000:]
        return entry.state, entry.step, entry.node, entry.message, log

    def wait_for_ends(self, runs: Sequence[str]) -> None:
        for run in runs:
            entry = self.wait(run, "the end", lambda entry: not entry.is_active and entry.state != "queued")
            assert entry.state == "finished", (entry.state, entry.message)


def wait(what: str, holds: Callable[[], object], describe: Callable[[], str] = str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen: {describe()}"
        time.sleep(0.05)


def by_processes(folder: Path, settings: Sequence[Preset], **how: Any) -> tuple[RunStore, list[str]]:
    """Runs with these settings, trained by the executor `process`."""
    before = os.environ.pop(executors.VARIABLE, None)
    try:
        store = RunStore(folder)
        runs = [jobs.submit(store, one, device="cpu", **how) for one in settings]
        for run in runs:
            wait(f"the end of {run}", lambda run=run: _ended(store, run))
    finally:
        if before is not None:
            os.environ[executors.VARIABLE] = before
    return store, runs


def _ended(store: RunStore, run: str) -> bool:
    jobs.reconcile(store)
    return store.entry(run).state in ("finished", "failed")


@contextmanager
def site(**how: Any) -> Iterator[Site]:
    """A site that is gone afterwards, with all files of Ray and of the nodes. The paths of Ray's sockets have to be short."""
    with tempfile.TemporaryDirectory(prefix="xf-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = _in_folder(folder, **how)
        try:
            yield made
        finally:
            made.close()


def _in_folder(folder: str, **how: Any) -> Site:
    os.environ |= {"TMPDIR": folder, "RAY_TMPDIR": folder}
    return Site(Path(folder), **how)


def main() -> None:
    """The head is the one node. It does not import torch, and neither does its server."""
    made = _in_folder(sys.argv[1], nodes=0)
    made.serve()
    sys.stdin.read()
    made.close()


if __name__ == "__main__":
    main()
