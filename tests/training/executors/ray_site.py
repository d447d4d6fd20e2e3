"""A Ray cluster of simulated nodes on this machine, with a run store and servers. Nodes and servers can be killed.

python -m tests.training.executors.ray_site FOLDER     one node and one server until stdin is closed; used by the test suite
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from xformer.training import executors, liveness
from xformer.training.executors.relay import ADDRESS, RELAY_LOCK
from xformer.training.run_store import RunStore


class RaySite:
    """A cluster and a run store. Each node has one CPU; with `nodes=0`, the head itself is the only node."""

    def __init__(self, folder: Path, nodes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        os.environ |= {"TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
        os.environ |= {executors.VARIABLE: executors.RAY, ADDRESS: f"127.0.0.1:{self.port}"}
        self.store = RunStore(folder / "runs")
        self.servers: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[str, Any] = {}
        self.made = 0
        self.memory = {"object_store_memory": 80 * 1024**2}  # close to Ray's minimum
        unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        head = {"node_name": "head", "num_cpus": 0 if nodes else 1, "gcs_server_port": self.port}
        self.cluster = Cluster(initialize_head=True, head_node_args=self.memory | unused | head)
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> None:
        self.made += 1
        name = f"node-{self.made}"
        how: dict[str, Any] = {"num_cpus": 1, "node_name": name}
        self.nodes[name] = self.cluster.add_node(**self.memory, **how)

    def kill_node(self, name: str) -> None:
        """Send SIGKILL to all processes of a node."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def serve(self) -> None:
        """Start a server."""
        command = [sys.executable, "-m", "tests.faults.server", str(self.store.folder), "0"]
        self.servers.append(subprocess.Popen(command, cwd=Path(__file__).parents[3]))

    def kill_servers(self) -> None:
        """Send SIGKILL to the servers and to the relay."""
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers = []
        lock = self.store.folder / RELAY_LOCK
        if liveness.is_held(lock) and (pid := liveness.holder(lock)):
            os.kill(pid, signal.SIGKILL)
            while liveness.is_held(lock):
                time.sleep(0.05)

    def close(self) -> None:
        self.kill_servers()
        self.cluster.shutdown()


@contextmanager
def site(nodes: int) -> Iterator[RaySite]:
    """Yield a site and remove it afterwards with all its files. It is in /tmp because Ray needs short socket paths."""
    with tempfile.TemporaryDirectory(prefix="xf-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = RaySite(Path(folder), nodes)
        try:
            yield made
        finally:
            made.close()


def main() -> None:
    """Run a cluster whose head is the only node, and a server. Neither imports torch."""
    made = RaySite(Path(sys.argv[1]), nodes=0)
    made.serve()
    sys.stdin.read()
    made.close()


if __name__ == "__main__":
    main()
