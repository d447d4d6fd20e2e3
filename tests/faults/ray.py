"""`python -m tests.faults.ray`: runs on a Ray cluster against runs in processes, and what can be killed, killed.

python -m tests.faults.ray                  24 runs and a sweep of 64; 20 trials of each fault; half an hour or so
python -m tests.faults.ray --short          what the test suite does
python -m tests.faults.ray --only node      the parts whose name holds a word

It moves itself into a network namespace with loopback only, as Ray looks up the address of the machine outside.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.ray_site import LONG, Site, by_processes, outcome, site, tensors, wait
from tests.training.tiny import tiny_preset
from tests.trial_options import trial_options
from xformer.files import is_finished
from xformer.presets import Preset
from xformer.training.executors.__main__ import AWAY
from xformer.training.executors.relay import Status
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweeps import members_of

INSIDE = "XFORMER_IN_NAMESPACE"
SWEPT = tiny_preset(steps=200, log_every=20, snapshot_every=100)
RESULT = "XFORMER_RAY_RESULT"
"""A file for the outcome of each part, as JSON."""
Part = Callable[[Site, int, random.Random], None]


def _with_seed(seed: int) -> Preset:
    return tiny_preset(steps=300, seed=seed, snapshot_every=50, model={"dropout": 0.2})


def _peers(site: Site, n: int) -> list[dict[str, Any]]:
    """What runs with these seeds end in when processes train them; each is trained once."""
    missing = range(len(site.peers), n)
    store, runs = by_processes(site.folder / f"peers-{len(site.peers)}", [_with_seed(seed) for seed in missing])
    site.peers += [outcome(store, run) for run in runs]
    return site.peers[:n]


def single_runs(site: Site, n: int, draw: random.Random) -> None:
    """Runs with other seeds, all submitted at once: bit for bit those of processes."""
    runs = [site.submit(_with_seed(seed)) for seed in range(n)]
    site.wait_for_ends(runs)
    assert [outcome(site.store, run) for run in runs] == _peers(site, n)
    assert {site.store.entry(run).node for run in runs} <= site.nodes.keys()


def sweep(site: Site, n: int, draw: random.Random) -> None:
    """A sweep in batches: every model ends as a run, with maps, and within rounding as in one batch."""
    run = site.submit(SWEPT, sweep={"seed": range(n)})
    site.wait_for_ends([run])
    store, [peer] = by_processes(site.folder / "swept", [SWEPT], sweep={"seed": range(n)})
    mine, theirs = StoredSweep(site.store, run), StoredSweep(store, peer)
    size = (site.store.entry(run).sweep or {})["batch"]
    assert size < n, "one batch only"
    assert len(mine.runs) == n
    assert mine.map_steps() == theirs.map_steps()
    for own, other in zip(members_of(mine.entry), members_of(theirs.entry), strict=True):
        losses, peers = ([row["loss"] for row in of.rows_of[one.id]] for of, one in ((mine, own), (theirs, other)))
        np.testing.assert_allclose(losses, peers, rtol=2e-3, atol=1e-5)
        assert outcome(site.store, own.id)["step"] == SWEPT.train.steps
        assert is_finished(site.store.folder_of(own.id)), "its state is still there"
    maps, _, _ = mine.maps()
    assert maps.reshape(n, -1).any(axis=1).all(), "a batch has no maps"


def _long(site: Site) -> dict[str, Any]:
    """What an undisturbed run in a process ends in; trained once."""
    if site.reference is None:
        store, [run] = by_processes(site.folder / "reference", [LONG])
        site.reference = outcome(store, run)
    return site.reference


def _has_saved(entry: Any) -> bool:
    return entry.step >= 100 and entry.pid is not None


def node(site: Site, n: int, draw: random.Random) -> None:
    """The node of a run is killed, with all its processes. Nothing is lost."""
    expected = _long(site)
    run = site.submit()
    entry = site.wait(run, "training", _has_saved)
    time.sleep(draw.uniform(0, 1.5))
    site.kill_node(str(entry.node))
    site.add_node()
    site.wait_for_ends([run])
    assert outcome(site.store, run) == expected
    entry = site.store.entry(run)
    assert f"The node {entry.node}" not in entry.message
    assert entry.message.endswith("the last state that was saved here."), entry.message


def server(site: Site, n: int, draw: random.Random) -> None:
    """The server is killed, and another one comes later. The run goes on meanwhile and is found again."""
    expected = _long(site)
    site.kill_servers()
    site.serve()
    run = site.submit()
    before = site.wait(run, "training", _has_saved)
    time.sleep(draw.uniform(0, 1))
    site.kill_servers()
    time.sleep(draw.uniform(0, 5))
    site.serve()
    site.wait_for_ends([run])
    assert outcome(site.store, run) == expected
    entry = site.store.entry(run)
    assert (entry.turn, entry.message) == (before.turn, ""), "it was started again"


def two_servers(site: Site, n: int, draw: random.Random) -> None:
    """Two servers share a run store: each run is started once."""
    site.kill_servers()
    site.serve()
    site.serve()
    runs = [site.submit(_with_seed(seed)) for seed in range(n)]
    turns = [site.wait(run, "its turn", lambda entry: entry.turn).turn for run in runs]
    site.wait_for_ends(runs)
    assert [site.store.entry(run).turn for run in runs] == turns
    assert [outcome(site.store, run) for run in runs] == _peers(site, n)


def head(site: Site, n: int, draw: random.Random) -> None:
    """The head is gone. The store says so, and the run is resumed when there is a head again."""
    expected = _long(site)
    site.serve()
    run = site.submit()
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
    assert outcome(site.store, run) == expected
    wait("the figures of the new cluster", lambda: (found := Status.read(site.store.folder)) and found.cpus >= 2)


def command(site: Site, n: int, draw: random.Random) -> None:
    """`python -m xformer train … --executor ray`, and with `--seeds`: the weights and the folders of a training here."""
    kinds = {"one": ["--score", "50"], "many": ["--seeds", "2", "--score", "0"]}
    weights = {}
    for name in ("ray", "process"):
        out = site.folder / name
        words = ["train", "--preset", "reverse-mirror", "--steps", "40", "--device", "cpu", "--executor", name, "--out"]
        for kind in list(kinds)[:n]:
            command = [sys.executable, "-m", "xformer", *words, str(out / kind), *kinds[kind]]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        files = {str(file.relative_to(out)): file for file in sorted(out.rglob("*.safetensors"))}
        weights[name] = {path: hashlib.sha256(tensors(file)).hexdigest() for path, file in files.items()}
    assert weights["ray"] == weights["process"], weights


PARTS: dict[str, tuple[Part, int, int]] = {
    "single runs": (single_runs, 24, 2),
    "sweep": (sweep, 64, 9),
    "node": (node, 20, 1),
    "server": (server, 20, 1),
    "two servers": (two_servers, 4, 2),
    "command": (command, 2, 1),
    "head": (head, 3, 1),
}
"""Each part, and its size in the long and the short form: the number of trials, or of runs or models in `SIZED`."""
SIZED = ("single runs", "sweep", "two servers", "command")


def main() -> int:
    """Try all parts; 0 when all were survived."""
    options = trial_options("python -m tests.faults.ray")
    if INSIDE not in os.environ:
        command = [sys.executable, "-m", "tests.loopback", sys.executable, "-m", "tests.faults.ray", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    draw, results = random.Random(options.seed), {}
    print(f"{'part':<16} {'tried':>6} {'survived':>9} {'seconds':>8}", flush=True)
    with site(nodes=3) as made:
        for name, (part, long, short) in PARTS.items():
            if options.only in name:
                results[name] = _try(made, name, part, short if options.short else long, draw)
    if RESULT in os.environ:
        Path(os.environ[RESULT]).write_text(json.dumps(results))
    return 0 if results and not any(results.values()) else 1


def _try(made: Site, name: str, part: Part, n: int, draw: random.Random) -> list[str]:
    """Try a part as often as it says. Returns the failures."""
    trials, failures, began = (1 if name in SIZED else n), [], time.monotonic()
    for number in range(1, trials + 1):
        try:
            part(made, n, draw)
        except Exception:
            failures.append(traceback.format_exc())
            print(failures[-1], file=sys.stderr, flush=True)
        if trials > 1:
            print(f"{name}: {len(failures)} of {number} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{name:<16} {trials:>6} {trials - len(failures):>9} {seconds:>8.1f}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
