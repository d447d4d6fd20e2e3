"""A training step of many models at once against each on its own: the time of a model and step in stacks of several sizes.

Every variant makes whole steps, data included; a stack of n is compared with one model that takes n steps in the same turn: as
it is trained, which repeats recorded operations as a stack does, and each anew through autograd, as every step once was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.measure import Machine, in_turns, options, ratio, show
from xformer.presets import preset
from xformer.tasks import Task
from xformer.training.device import choose_device
from xformer.training.loop import Run
from xformer.training.replayed_step import WARM_UP
from xformer.training.stacked_step import StackedStep
from xformer.training.steps import Training
from xformer.training.train_many import check_alike, sweep


def stacked(name: str, n: int, device: torch.device) -> Callable[[], object]:
    """A step of n models at once."""
    presets = sweep(preset(name), seed=range(n), steps=[10_000_000])
    check_alike(presets)
    together = StackedStep([Run(one, Task(one.task), device, None) for one in presets])

    def step() -> None:
        for run, figures in zip(together.runs, together.train_step(), strict=True):
            run.took_step(*figures)

    return step


def one(name: str, n: int, device: torch.device, *, repeated: bool = True) -> Callable[[], object]:
    """n steps of one model, as it is trained, or each anew through autograd."""
    [chosen] = sweep(preset(name), steps=[10_000_000])
    run = Run(chosen, Task(chosen.task), device, None)

    for _ in range(WARM_UP + 1 if repeated else 0):
        run.train_step()

    def steps() -> None:
        for _ in range(n):
            run.train_step() if repeated else Training.train_step(run)

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
            variants = {
                "stack": stacked(name, n, device),
                "alone": one(name, n, device),
                "autograd": one(name, n, device, repeated=False),
            }
            seconds = in_turns(variants, given.rounds)
            low, middle, high = ratio(seconds["autograd"], seconds["stack"])
            rows.append(
                {
                    "preset": name,
                    "models": n,
                    "ms a model and step": 1e3 * statistics.median(seconds["stack"]) / n,
                    "alone": 1e3 * statistics.median(seconds["alone"]) / n,
                    "by autograd": 1e3 * statistics.median(seconds["autograd"]) / n,
                    "× as fast as alone": ratio(seconds["alone"], seconds["stack"])[1],
                    "× as fast as by autograd": middle,
                    "quartiles": f"{low:.2f} – {high:.2f}",
                }
            )
    notes = [f"On {device.type}, {given.rounds} turns each; drawing the data is part of a step."]
    show("Many models in one stacked step", machine, rows, notes, given)


if __name__ == "__main__":
    main()
