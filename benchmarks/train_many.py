"""Training many models in one step, compared with training one after the other: time per model and step.

Every variant takes whole steps, including drawing the data. A stack of n models is compared with one model that takes n steps
in the same turn. Only GPUs train in stacks: on a CPU this shows what a stack would gain or lose there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.measure import Machine, in_turns, options, ratio, show
from xformer.presets import preset
from xformer.tasks import Task
from xformer.training import many
from xformer.training.loop import Run, choose_device
from xformer.training.sweeps import check_alike, sweep


def stacked(name: str, n: int, device: torch.device) -> Callable[[], object]:
    """Return a function that takes one step of n models together."""
    presets = sweep(preset(name), seed=range(n), steps=[10_000_000])
    check_alike(presets)
    runs = [Run(one, Task(one.task), device, None) for one in presets]

    def step() -> None:
        for finish in many.stacked_step(runs):
            finish()

    return step


def one(name: str, n: int, device: torch.device) -> Callable[[], object]:
    """Return a function that takes n steps of one model."""
    [chosen] = sweep(preset(name), steps=[10_000_000])
    run = Run(chosen, Task(chosen.task), device, None)

    def steps() -> None:
        for _ in range(n):
            run.train_step()

    return steps


def main() -> None:
    given = options(
        __doc__, rounds=8,
        sizes={"type": int, "nargs": "+", "default": [1, 4, 16]},
        presets={"nargs": "+", "default": ["reverse-small", "reverse-mirror", "reverse-seq2seq", "reverse", "modular"]},
        device={"default": "cpu"},
    )  # fmt: skip
    machine, device = Machine.start(given.threads), choose_device(given.device)
    rows = []
    for name in given.presets:
        for n in given.sizes:
            seconds = in_turns({"stack": stacked(name, n, device), "alone": one(name, n, device)}, given.rounds)
            low, middle, high = ratio(seconds["alone"], seconds["stack"])
            rows.append(
                {
                    "preset": name,
                    "models": n,
                    "ms a model and step": 1e3 * statistics.median(seconds["stack"]) / n,
                    "alone": 1e3 * statistics.median(seconds["alone"]) / n,
                    "× as fast as alone": middle,
                    "quartiles": f"{low:.2f} – {high:.2f}",
                }
            )
    notes = [f"On {device.type}, {given.rounds} turns each; steps include drawing the data."]
    show("Many models in one stacked step", machine, rows, notes, given)


if __name__ == "__main__":
    main()
