"""`python -m tests.faults.ray`: runs on a Ray cluster against runs in processes, and what can be killed, killed.

python -m tests.faults.ray                  24 runs and a sweep of 64; 20 trials of each fault; half an hour or so
python -m tests.faults.ray --only node      the parts whose name holds a word

It moves itself into a network namespace with loopback only, as Ray looks up the address of the machine outside.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.ray_site import Site, by_processes, site, wait
from tests.training.at_work import outcome
from tests.training.tiny import tiny_preset
from tests.trial_options import trial_options
from xformer.files import is_finished
from xformer.presets import Preset
from xformer.training.executors.__main__ import AWAY
from xformer.training.executors.relay import Status
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweeps import members_of

INSIDE = "XFORMER_IN_NAMESPACE"
LONG = tiny_preset(steps=1_200, log_every=20, snapshot_every=50, model={"dropout": 0.2}, weight_decay=0.1)
"""A run of some seconds."""
SWEPT = tiny_preset(steps=200, log_every=20, snapshot_every=100)
N_RUNS, N_MODELS = 24, 64


def single_runs(site: Site, draw: random.Random) -> None:
    """Runs with other seeds, all submitted at once: bit for bit those of processes."""
    settings = [tiny_preset(steps=300, seed=n, snapshot_every=50, model={"dropout": 0.2}) for n in range(N_RUNS)]
    runs = [site.submit(one) for one in settings]
    site.wait_for_ends(runs)
    store, peers = by_processes(site.folder / "peers", settings)
    assert [outcome(site.store, run) for run in runs] == [outcome(store, run) for run in peers]
    assert {site.store.entry(run).node for run in runs} <= site.nodes.keys()


def sweep(site: Site, draw: random.Random) -> None:
    """A sweep in batches: every model ends as a run, with maps, and within rounding as in one batch."""
    run = site.submit(SWEPT, sweep={"seed": range(N_MODELS)})
    site.wait_for_ends([run])
    store, [peer] = by_processes(site.folder / "swept", [SWEPT], sweep={"seed": range(N_MODELS)})
    mine, theirs = StoredSweep(site.store, run), StoredSweep(store, peer)
    assert (site.store.entry(run).sweep or {})["batch"] < N_MODELS, "one batch only"
    assert len(mine.runs) == N_MODELS
    assert mine.map_steps() == theirs.map_steps()
    for own, other in zip(members_of(mine.entry), members_of(theirs.entry), strict=True):
        losses, peers = ([row["loss"] for row in of.rows_of[one.id]] for of, one in ((mine, own), (theirs, other)))
        np.testing.assert_allclose(losses, peers, rtol=2e-3, atol=1e-5)
        assert outcome(site.store, own.id)["step"] == SWEPT.train.steps
        assert is_finished(site.store.folder_of(own.id)), "its state is still there"
    maps, _, _ = mine.maps()
    assert maps.reshape(N_MODELS, -1).any(axis=1).all(), "a batch has no maps"


@cache
def _undisturbed(folder: Path, settings: Preset) -> dict[str, Any]:
    """What an undisturbed run in a process ends in; trained once."""
    store, [run] = by_processes(folder, [settings])
    return outcome(store, run)


def _has_saved(entry: Any) -> bool:
    return entry.step >= 100 and entry.pid is not None


def node(site: Site, draw: random.Random) -> None:
    """The node of a run is killed, with all its processes. Nothing is lost."""
    run = site.submit(LONG)
    entry = site.wait(run, "training", _has_saved)
    time.sleep(draw.uniform(0, 1.5))
    site.kill_node(str(entry.node))
    site.add_node()
    site.wait_for_ends([run])
    assert outcome(site.store, run) == _undisturbed(site.folder / "reference", LONG)
    entry = site.store.entry(run)
    assert f"The node {entry.node}" not in entry.message
    assert entry.message.endswith("the last state that was saved here."), entry.message


def server(site: Site, draw: random.Random) -> None:
    """The server is killed, and two others come later. The run goes on meanwhile and is found again, by one of them."""
    site.kill_servers()
    site.serve()
    run = site.submit(LONG)
    before = site.wait(run, "training", _has_saved)
    time.sleep(draw.uniform(0, 1))
    site.kill_servers()
    time.sleep(draw.uniform(0, 5))
    site.serve()
    site.serve()
    site.wait_for_ends([run])
    assert outcome(site.store, run) == _undisturbed(site.folder / "reference", LONG)
    entry = site.store.entry(run)
    assert (entry.turn, entry.message) == (before.turn, ""), "it was started again"


def head(site: Site, draw: random.Random) -> None:
    """The head is gone. The store says so, and the run is resumed when there is a head again."""
    site.serve()
    run = site.submit(LONG)
    site.wait(run, "training", _has_saved)
    site.kill_head()
    entry = site.wait(run, "the message", lambda entry: entry.message == AWAY)
    assert (entry.state, entry.is_active) == ("running", True)
    status = Status.read(site.store.folder)
    assert status is not None
    assert "cannot be reached" in status.problem
    site.start_head()
    for _ in range(2):
        site.add_node()
    site.wait_for_ends([run])
    assert outcome(site.store, run) == _undisturbed(site.folder / "reference", LONG)
    wait("the figures of the new cluster", lambda: (found := Status.read(site.store.folder)) and found.cpus >= 2)


PARTS: dict[str, tuple[Callable[[Site, random.Random], None], int]] = {
    "single runs": (single_runs, 1),
    "sweep": (sweep, 1),
    "node": (node, 20),
    "server": (server, 20),
    "head": (head, 3),
}
"""Each part, and the number of trials."""


def main() -> int:
    """Try all parts; 0 when all were survived."""
    options = trial_options("python -m tests.faults.ray", has_short_form=False)
    if INSIDE not in os.environ:
        command = [sys.executable, "-m", "tests.loopback", sys.executable, "-m", "tests.faults.ray", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    draw, n_failed = random.Random(options.seed), 0
    print(f"{'part':<16} {'tried':>6} {'survived':>9} {'seconds':>8}", flush=True)
    with site(nodes=3) as made:
        for name, (part, trials) in PARTS.items():
            if options.only in name:
                n_failed += _try(made, name, part, trials, draw)
    return int(n_failed > 0)


def _try(made: Site, name: str, part: Callable[[Site, random.Random], None], n: int, draw: random.Random) -> int:
    """Try a part so many times. Returns the number of failures."""
    n_failed, began = 0, time.monotonic()
    for _ in range(n):
        try:
            part(made, draw)
        except Exception:
            n_failed += 1
            traceback.print_exc()
    print(f"{name:<16} {n:>6} {n - n_failed:>9} {time.monotonic() - began:>8.1f}", flush=True)
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
