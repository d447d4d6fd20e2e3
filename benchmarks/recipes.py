"""Accuracy and training time of each preset over several seeds, compared with the usual training loop.

Before each run, some steps of `seed_loop` are timed, so that both run under the same conditions; the total time of the loop
is estimated as 4,680 times that of a step. Seconds cover the whole run from initial weights to the last step, including
reports and scoring on held-out sequences; "processor" counts only the time that this process was running.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

from benchmarks.measure import Machine, options, show
from benchmarks.seed_loop import STEPS, SeedLoop
from xformer.presets import preset
from xformer.tasks import Task
from xformer.training.evaluate import evaluate
from xformer.training.loop import Run, choose_device

GOOD = 0.999


def train(name: str, seed: int, samples: int) -> dict[str, Any]:
    """Train a preset once and score it on unseen sequences."""
    chosen = preset(name)
    chosen = replace(chosen, train=chosen.train.replace(seed=seed))
    wall, busy = time.perf_counter(), time.process_time()
    run = Run(chosen, Task(chosen.task), choose_device("cpu"), None)
    for _ in run.reports():
        pass
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    score = evaluate(run.model, run.task, samples=samples, seed=seed + 1)
    return {"seed": seed, "exact match": score.exact_match, "seconds": wall, "processor s": busy}


def usual_step(loop: SeedLoop, steps: int) -> tuple[float, float]:
    """Return the mean wall-clock and processor seconds of a step of the usual loop."""
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loop.step()
    return (time.perf_counter() - wall) / steps, (time.process_time() - busy) / steps


def main() -> None:
    given = options(
        __doc__,
        rounds=1,
        presets={"nargs": "+", "default": ["reverse", "reverse-small", "reverse-mirror"], "metavar": "NAME"},
        seeds={"type": int, "default": 10, "help": "runs of each preset"},
        samples={"type": int, "default": 10_000, "help": "unseen sequences that each run is scored on"},
        usual_steps={"type": int, "default": 20, "help": "steps of the usual loop timed before each run"},
    )
    machine = Machine.start(given.threads)
    loop = SeedLoop(n=2000)
    usual_step(loop, 5)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in given.presets}
    for seed in range(given.seeds):
        for name in given.presets:
            wall, busy = usual_step(loop, given.usual_steps)
            run = train(name, seed, given.samples)
            ratios = {"times faster": wall * STEPS / run["seconds"], "by processor": busy * STEPS / run["processor s"]}
            runs[name].append(run | {"usual step ms": 1e3 * wall} | ratios)
    rows = []
    for name, of_name in runs.items():

        def middle(column: str, of_name: list[dict[str, Any]] = of_name) -> float:
            return statistics.median(run[column] for run in of_name)

        rows.append(
            {
                "preset": name,
                f"≥ {GOOD}": f"{sum(run['exact match'] >= GOOD for run in of_name)} of {len(of_name)}",
                "worst": min(run["exact match"] for run in of_name),
                "seconds": middle("seconds"),
                "slowest": max(run["seconds"] for run in of_name),
                "processor s": middle("processor s"),
                "usual step ms": middle("usual step ms"),
                "times faster": middle("times faster"),
                "by processor": middle("by processor"),
            }
        )
    notes = [
        f"Exact match on {given.samples:,} unseen sequences; medians over the seeds. The usual loop's {STEPS:,} steps are "
        "estimated from the time of a step."
    ]
    if given.json:
        rows = [row | {"runs": runs[row["preset"]]} for row in rows]
    show("Recipes", machine, rows, notes, given)


if __name__ == "__main__":
    main()
