"""A model trained twice from the same first weights on the same batches, once with a bug: a report of both at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pages.shared.model_card import card_of_model
from pages.shared.shown_path import shown_path
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.bugs.lab import lab_run
from xformer.config import TrainConfig
from xformer.errors import XformerError
from xformer.presets import Preset
from xformer.training.progress import Progress

HELD_OUT = 64
"""Unseen inputs on which both are scored."""


@dataclass(frozen=True)
class Lesson:
    """How far both have come: one row a report, and why the run with the bug ended early, where it did."""

    rows: list[dict[str, float]] = field(repr=False)
    step: int
    steps: int
    problem: str = ""

    @property
    def is_final(self) -> bool:
        return self.step >= self.steps


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


def lab_preset(view: View, rate: int, steps: int) -> Preset:
    """The model's own size and task, trained briefly with small batches."""
    recipe = card_of_model(view.model).get("train")
    peak = recipe.get("peak_lr", 3e-3) if isinstance(recipe, dict) else 3e-3
    batch = min(32, recipe.get("batch_size", 32)) if isinstance(recipe, dict) else 32
    train = TrainConfig(
        steps=steps,
        batch_size=batch,
        peak_lr=peak * rate,
        log_every=min(20, max(1, steps // 20)),
        held_out=HELD_OUT,
        snapshot_every=0,
    )
    return Preset("lab", "lab", "", view.config, view.own.task.config, train)


def lesson_code(view: View, bug: Bug, preset: Preset) -> list[str]:
    """The lines that train it again with the bug."""
    train = preset.train
    return [
        "import xformer",
        "from xformer.bugs import BUGS",
        "from xformer.bugs.lab import lab_run",
        "from xformer.config import TrainConfig",
        "from xformer.presets import Preset",
        f'checkpoint = xformer.load("{shown_path(view.model)}")',
        f"train = TrainConfig(steps={train.steps}, batch_size={train.batch_size}, peak_lr={train.peak_lr}, "
        f"log_every={train.log_every}, held_out={HELD_OUT}, snapshot_every=0)",
        'preset = Preset("lab", "lab", "", checkpoint.config, checkpoint.task.config, train)',
        f'for progress in lab_run(preset, BUGS["{bug.name}"]).reports():',
        "    print(progress.step, progress.loss)",
    ]


def _figures(progress: Progress, side: str) -> dict[str, float]:
    return {
        f"loss_{side}": progress.loss,
        f"tokens_{side}": progress.held_out.token_accuracy,
        f"gradient_{side}": progress.gradient_norm,
    }
