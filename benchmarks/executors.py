"""Overhead of a two-second run on Ray and in a process, and runs per minute on 1, 2 and 4 simulated nodes of this machine.

The overhead of a run is the time from Start until the run store records its end, minus its training time: starting a process or
an actor, importing torch, and scoring the model. The nodes have one processor each and share those of this machine, so
more nodes than processors give no speed-up here.
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
    """Return the preset of the small encoder with the given number of steps."""
    chosen = preset("reverse-small")
    return Preset(
        chosen.name, chosen.title, "", chosen.model, chosen.task, chosen.train.replace(steps=steps, target=0.0)
    )


def train(store: RunStore, settings: Preset, n: int) -> tuple[float, list[float]]:
    """Submit n runs at once. Return the seconds until all have ended, and the training seconds of each."""
    began = time.monotonic()
    runs = [jobs.submit(store, settings, device="cpu", name=str(one)) for one in range(n)]
    while any(store.entry(run).state != "finished" for run in runs):
        jobs.reconcile(store)
        time.sleep(0.05)
    return time.monotonic() - began, [store.entry(run).seconds for run in runs]


def rows_of(name: str, nodes: int, store: RunStore, settings: Preset, rounds: int, n: int) -> dict[str, Any]:
    """Return the row of an executor."""
    train(store, settings, 1)  # warm-up: compiles and caches on first use
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
        steps={"type": int, "default": 250, "help": "steps of the two-second run"},
        runs={"type": int, "default": 12, "help": "number of runs submitted at once"},
        nodes={"type": int, "nargs": "*", "default": [1, 2, 4], "help": "numbers of simulated nodes"},
    )  # fmt: skip
    if INSIDE not in os.environ:
        command = [sys.executable, "-m", "tests.loopback", sys.executable, "-m", "benchmarks.executors", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode)
    from tests.training.executors.ray_site import site  # late, because it imports Ray

    machine, settings = Machine.start(given.threads), two_seconds(given.steps)
    with tempfile.TemporaryDirectory() as folder:
        rows = [rows_of(executors.PROCESS, 0, RunStore(Path(folder)), settings, given.rounds, given.runs)]
    for n in given.nodes:
        with site(nodes=n) as made:
            rows.append(rows_of(executors.RAY, n, made.store, settings, given.rounds, given.runs))
        os.environ.pop(executors.VARIABLE)
    notes = [
        f"{given.rounds} single runs, then {given.runs} runs at once. The process executor trains one run at a time."
    ]
    show("Executors", machine, rows, notes, given)


if __name__ == "__main__":
    main()
