"""Train many models of one shape at once: sixteen seeds, or a grid of settings, in little more than the time of a few.

for report in train_many(sweep(preset("reverse-small"), seed=range(16))):
    print(report.number, report.progress)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from xformer.config import ModelConfig, TaskConfig
from xformer.errors import ConfigError, NoRoomError, TrainingError
from xformer.places import is_finished
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.tasks import Task
from xformer.training.device import choose_device
from xformer.training.limits import check_memory
from xformer.training.loop import Run, Stopped
from xformer.training.progress import Progress
from xformer.training.stacked_step import StackedStep

ALIKE = ("batch_size",)
"""Training settings that models which are trained together have in common; each of them sets all the others for itself."""
OF_THE_TASK = ("train_share",)
"""Settings of the task that leave the shape of what is read alone."""


@dataclass(frozen=True)
class ReportOfOne:
    """What one of many models reports; the last of each has `done` set, or says why it was given up."""

    number: int
    """Which of the presets it is, from 0."""
    progress: Progress | None
    failure: str = ""
    """Why it can go no further, as one sentence: its loss is no number any more. The others go on."""

    @property
    def is_last(self) -> bool:
        return bool(self.failure) or (self.progress is not None and self.progress.done)


def sweep(of: Preset | str, **settings: Sequence[Any]) -> list[Preset]:
    """A preset with every combination of training settings, the last one changing fastest: `sweep(p, seed=range(16))`,
    `sweep(p, peak_lr=(1e-3, 3e-3), seed=range(4))`. Raises `ConfigError` for a setting that is none, one that changes the shape
    of the model, or a value that it does not take."""
    of = preset_named(of) if isinstance(of, str) else of
    for name in settings:
        if name in ModelConfig.model_fields or (name in TaskConfig.model_fields and name not in OF_THE_TASK):
            raise ConfigError(
                "Settings that change the shape of a model, or what it reads, cannot be swept together: got "
                f"{name!r}; for example seed=range(16) or peak_lr=(0.001, 0.003) can."
            )
        if name == "train_share" and of.task.name != "modular":
            raise ConfigError(
                f"The share of pairs is a setting of modular addition alone, got it for {of.task.name}; for example "
                "sweep('modular', train_share=(0.6, 0.8))."
            )
    return [_with(of, dict(zip(settings, values, strict=True))) for values in product(*settings.values())]


def _with(of: Preset, values: Mapping[str, Any]) -> Preset:
    task = {name: value for name, value in values.items() if name in OF_THE_TASK}
    train = {name: value for name, value in values.items() if name not in OF_THE_TASK}
    return replace(of, task=of.task.replace(**task), train=of.train.replace(**train))


def train_many(
    presets: Sequence[Preset | str], *, out: str | Path | None = None, device: str = "auto", resume: bool = False
) -> Iterator[ReportOfOne]:
    """Train presets whose models have one shape and one task as one stacked computation, and report on each as it goes.

    Seeds, learning rates, decay, steps and what is kept may differ. Each model is, bit for bit on a CPU, a function of the
    presets and its place among them, and within rounding what `train` makes of its preset alone; whatever becomes of one, the
    others go on. With `out`, each keeps its snapshots, state and checkpoint in `out/000`, `out/001`, … as `train` does, and
    `resume` goes on from there with those that are not finished.

    Raises `ConfigError` where they cannot be trained together, or not in the memory that is free.
    """
    chosen = [preset_named(one) if isinstance(one, str) else one for one in presets]
    check_alike(chosen)
    where = choose_device(device)
    Task(chosen[0].task).check_fits(chosen[0].model)
    check_memory(chosen[0], where.type, n_models=len(chosen))
    folders = [None if out is None else Path(out) / f"{number:03d}" for number in range(len(chosen))]
    runs = {number: Run(one, Task(one.task), where, folders[number]) for number, one in enumerate(chosen)}
    if resume:
        runs = {number: run for number, run in runs.items() if run.out is None or not is_finished(run.out)}
        for run in runs.values():
            run.restore()
    return reports(runs)


def check_alike(presets: Sequence[Preset]) -> None:
    """Raise `ConfigError` where presets cannot be trained as one stacked computation."""
    if not presets:
        raise ConfigError(
            "Give at least one preset to train, got none; for example sweep('reverse-small', seed=range(16))."
        )
    first = presets[0]
    for number, one in enumerate(presets[1:], start=1):
        own = {name: getattr(first.task, name) for name in OF_THE_TASK}
        if (one.model, one.task.replace(**own)) != (first.model, first.task):
            raise ConfigError(
                f"Models that are trained together have one shape and one task, and preset {number} has others than preset 0; "
                "vary the training settings, for example sweep('reverse-small', seed=range(16))."
            )
        for name in ALIKE:
            if getattr(one.train, name) != getattr(first.train, name):
                raise ConfigError(
                    f"Models that are trained together have the same {name}, got {getattr(first.train, name)} and "
                    f"{getattr(one.train, name)}; train those of each {name} by themselves."
                )
    if first.model.dropout:
        raise ConfigError(
            f"Models with dropout are trained one by one, as each draws what it drops by itself; got dropout="
            f"{first.model.dropout:g}, take dropout=0."
        )


def reports(runs: Mapping[int, Run], between: Callable[[], None] = lambda: None) -> Iterator[ReportOfOne]:
    """Train runs to their ends together. Closed early, all that go on still write down where they stand.

    `between` is called before every step; it may raise `Stopped`.
    """
    if not runs:
        return
    together = StackedStep(list(runs.values()))
    numbers = {id(run): number for number, run in runs.items()}
    try:
        while together.runs:
            for run in list(together.runs):
                try:
                    progress = run.due()
                except TrainingError as error:
                    together.leave(run)
                    yield ReportOfOne(numbers[id(run)], None, str(error))
                    continue
                if progress is not None:
                    if progress.done:
                        together.leave(run)
                    yield ReportOfOne(numbers[id(run)], progress)
            if not together.runs:
                return
            between()
            taken = together.train_step()
            for run, figures in zip(list(together.runs), taken, strict=True):
                try:
                    run.took_step(*figures)
                except TrainingError as error:
                    together.leave(run)
                    yield ReportOfOne(numbers[id(run)], None, str(error))
    except (GeneratorExit, KeyboardInterrupt, Stopped, NoRoomError):
        for run in together.runs:
            if not run.updating:
                run.save_state()
        raise
