"""A model trained twice from the same first weights on the same batches, once with a bug: a report of both at a time.

train_both("checkpoints/reverse", "no-scale", steps=200).rows
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from xformer.adapters import own_task_model
from xformer.bugs import BUGS, Bug
from xformer.bugs.lab import lab_run
from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.errors import XformerError
from xformer.presets import Preset
from xformer.reading import adapter_of
from xformer.training.evaluate import Progress

HELD_OUT = 64
"""Unseen inputs on which both are scored."""


@dataclass(frozen=True)
class Lesson:
    """How far both have come: one row a report, and why the run with the bug ended early, where it did."""

    rows: list[dict[str, float]] = field(repr=False)
    step: int
    steps: int
    problem: str = ""
    recipe: str = ""
    """The call that trains them again, where that is known."""

    @property
    def is_final(self) -> bool:
        return self.step >= self.steps


def train_both(
    where: str | Path,
    bug: str,
    *,
    steps: int,
    peak_lr: float = 3e-3,
    batch_size: int = 32,
    until: int | None = None,
) -> Lesson:
    """Two fresh models of the size and task of a checkpoint, one with the bug of that name, and how both learn.

    `until` breaks off at the report after so many of the `steps`.
    """
    own = own_task_model(adapter_of(where))
    preset = lab_preset(own.model.config, own.task.config, steps, peak_lr, batch_size)
    return next(found for found in lesson(preset, BUGS[bug], steps) if found.is_final or found.step == until)


def lesson(preset: Preset, bug: Bug, steps: int) -> Iterator[Lesson]:
    """Train both, a report of each in turn; a run that breaks off stays where it is while the other goes on."""
    right = lab_run(preset, steps=steps, device="cpu").reports()
    wrong: Iterator[Progress] | None = lab_run(preset, bug, steps=steps, device="cpu").reports()
    rows: list[dict[str, float]] = []
    problem = ""
    for progress in right:
        row = {"step": float(progress.step)} | _figures(progress, "right")
        if wrong is not None:
            try:
                row |= _figures(next(wrong), "wrong")
            except XformerError as error:
                wrong, problem = None, str(error)
        rows.append(row)
        yield Lesson(list(rows), progress.step, steps, problem)


def lab_preset(model: ModelConfig, task: TaskConfig, steps: int, peak_lr: float, batch_size: int) -> Preset:
    """A model of this size, trained for this task, briefly."""
    train = TrainConfig(
        steps=steps,
        batch_size=batch_size,
        peak_lr=peak_lr,
        log_every=min(20, max(1, steps // 20)),
        held_out=HELD_OUT,
        snapshot_every=0,
    )
    return Preset("lab", "lab", "", model, task, train)


def _figures(progress: Progress, side: str) -> dict[str, float]:
    return {
        f"loss_{side}": progress.loss,
        f"tokens_{side}": progress.held_out.token_accuracy,
        f"gradient_{side}": progress.gradient_norm,
    }
