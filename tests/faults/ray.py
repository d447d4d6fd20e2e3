"""`python -m tests.faults.ray`: kill nodes and servers of a simulated Ray cluster, for about a quarter of an hour.

It runs in a network namespace with only a loopback interface, because Ray looks up the external address of the machine.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.faults.processes import check_outcome, is_at_rest, wait
from tests.training.executors.ray_site import RaySite, site
from tests.training.tiny import tiny_preset
from tests.trials import Kind, options_of, try_all
from xformer.training import jobs
from xformer.training.run_record import RunRecord

INSIDE = "XFORMER_IN_NAMESPACE"
LONG = tiny_preset(steps=1_200, log_every=20, snapshot_every=50, model={"dropout": 0.2}, weight_decay=0.1)
"""A run of some seconds."""


def begun(site: RaySite, draw: random.Random) -> RunRecord:
    """Start a run and wait until it is past its first saved state."""
    run = jobs.submit(site.store, LONG, device="cpu")
    entry = wait(site.store, run, "step 100", lambda entry: entry.step >= 100 and entry.pid is not None, tends=False)
    time.sleep(draw.uniform(0, 1.5))
    return entry


def ended(site: RaySite, run: str) -> RunRecord:
    """Wait for the end of a run and check that it ended like an undisturbed run."""
    entry = wait(site.store, run, "the end", is_at_rest, tends=False)
    check_outcome(site.store, run, LONG)
    return entry


def nodes(site: RaySite, n: int, draw: random.Random) -> Iterator[str]:
    """Kill the node of a run with all its processes: the run must continue on another node."""
    for _ in range(n):
        before = begun(site, draw)
        site.kill_node(str(before.node))
        site.add_node()
        message = ended(site, before.id).message
        assert message.endswith("the last state that was saved here."), message
        yield "continued on another node"


def servers(site: RaySite, n: int, draw: random.Random) -> Iterator[str]:
    """Kill the server and start two others later: the run must continue meanwhile, and one of them must find it again."""
    for _ in range(n):
        before = begun(site, draw)
        site.kill_servers()
        time.sleep(draw.uniform(0, 5))
        site.serve()
        site.serve()
        entry = ended(site, before.id)
        assert (entry.turn, entry.message) == (before.turn, ""), "it was started again"
        yield "found again"


def main() -> int:
    """Run both kinds of trials. Returns 0 if there is no finding."""
    if INSIDE not in os.environ:
        command = [sys.executable, "-m", "tests.loopback", sys.executable, "-m", "tests.faults.ray", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    options = options_of("python -m tests.faults.ray")
    with site(nodes=3) as made:
        made.serve()
        kinds = [
            Kind("node: killed", partial(nodes, made), 1, 20),
            Kind("server: killed", partial(servers, made), 1, 20),
        ]
        return try_all(kinds, options)


if __name__ == "__main__":
    sys.exit(main())
