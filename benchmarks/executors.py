"""A run of two seconds on Ray against one in a process, and runs a minute on 1, 2 and 4 simulated nodes of this machine.

The overhead of a run is the time from Start to its end in the run store, less its seconds of training: a process or an actor
that begins, imports torch, and scores the model. The nodes have one processor each and share those of this machine, so more
nodes than processors bring nothing here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Machine, options, show
from xformer.presets import Preset, preset
from xformer.training import executors, jobs
from xformer.training.run_store import RunStore

INSIDE = "XFORMER_IN_NAMESPACE"


def two_seconds(steps: int) -> Preset:
    """The preset of the small encoder, with so many steps."""
    chosen = preset("reverse-small")
    return Preset(
        chosen.name, chosen.title, "", chosen.model, chosen.task, chosen.train.replace(steps=steps, target=0.0)
    )


def train(store: RunStore, settings: Preset, n: int) -> tuple[float, list[float]]:
    """Submit n runs at once. Returns the seconds until all have ended, and the seconds of training of each."""
    began = time.monotonic()
    runs = [jobs.submit(store, settings, device="cpu", name=str(one)) for one in range(n)]
    while any(store.entry(run).state != "finished" for run in runs):
        jobs.reconcile(store)
        time.sleep(0.05)
    return time.monotonic() - began, [store.entry(run).seconds for run in runs]


def rows_of(name: str, nodes: int, store: RunStore, settings: Preset, rounds: int, n: int) -> dict[str, Any]:
    """The figures of an executor."""
    train(store, settings, 1)  # what is compiled and cached on first use
    alone = [train(store, settings, 1) for _ in range(rounds)]
    taken, _ = train(store, settings, n)
    return {
        "executor": name,
        "nodes": nodes,
        "s of training": statistics.median(seconds[0] for _, seconds in alone),
        "overhead s": statistics.median(taken - seconds[0] for taken, seconds in alone),
        "runs a minute": 60 * n / taken,
    }


def main() -> None:
    given = options(
        __doc__, rounds=3,
        steps={"type": int, "default": 250, "help": "steps of the run of about two seconds"},
        runs={"type": int, "default": 12, "help": "runs that are submitted at once"},
        nodes={"type": int, "nargs": "*", "default": [1, 2, 4], "help": "simulated nodes"},
    )  # fmt: skip
    if INSIDE not in os.environ:
        command = [sys.executable, "-m", "tests.loopback", sys.executable, "-m", "benchmarks.executors", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode)
    from tests.training.executors.ray_site import site  # only now: Ray is imported with it

    machine, settings = Machine.start(given.threads), two_seconds(given.steps)
    with tempfile.TemporaryDirectory() as folder:
        rows = [rows_of(executors.PROCESS, 0, RunStore(Path(folder)), settings, given.rounds, given.runs)]
    for n in given.nodes:
        with site(nodes=n) as made:
            rows.append(rows_of(executors.RAY, n, made.store, settings, given.rounds, given.runs))
        os.environ.pop(executors.VARIABLE)
    notes = [f"{given.rounds} turns of one run; then {given.runs} runs at once. A process trains one run at a time."]
    show("Executors", machine, rows, notes, given)


if __name__ == "__main__":
    main()
