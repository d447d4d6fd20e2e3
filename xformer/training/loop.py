"""The training loop: a generator of `Progress`, and what it keeps in a folder to be looked at and gone on with.

A step depends on nothing but (weights, optimiser, seed, step), so a run that is stopped and resumed ends, on a CPU, in the same
bits as one that never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import Checkpoint, save
from xformer.config import Config, TrainConfig
from xformer.errors import CheckpointError, ConfigError, NoRoomError, TrainingError
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.room import Room
from xformer.tasks import Task
from xformer.training.device import choose_device
from xformer.training.graphed_step import GraphedStep
from xformer.training.limits import check_memory
from xformer.training.progress import Progress
from xformer.training.replayed_step import ReplayedStep
from xformer.training.resource_needs import weights_on_disk
from xformer.training.snapshots import (
    STATE,
    State,
    read_state,
    remove_state,
    snapshot_file,
    thin_out,
    write_snapshot,
    write_state,
)
from xformer.training.steps import Training, Window


def train(
    preset: Preset | str,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
) -> Iterator[Progress]:
    """Train a preset (or your own `Preset`) and report as it goes; the last report has `done` set.

    With `out`, snapshots and the state to resume from are kept there, and at the end the checkpoint that `load` reads.
    Closing the generator early (or an interrupt) writes the state first, so that `resume` goes on from that very step; only
    an interrupt in the middle of an update leaves the state of the last snapshot.

    Raises `ConfigError` before anything is written when the configurations do not fit each other, or not into the memory
    that is free; `TrainingError` when the loss is no longer a number or there is nothing to resume.
    """
    preset = preset_named(preset) if isinstance(preset, str) else preset
    task = Task(preset.task)
    task.check_fits(preset.model)
    chosen = choose_device(device)
    check_memory(preset, chosen.type)
    run = Run(preset, task, chosen, None if out is None else Path(out))
    if resume:
        run.restore()
    return run.reports()


class Stopped(Exception):  # noqa: N818  like StopIteration, it is no error
    """Raised between two steps by whoever drives a run: it writes its state down and ends."""


class Run(Training):
    """A training whose snapshots and state are kept in a folder, so that it can be looked at and gone on with."""

    def __init__(
        self, preset: Preset, task: Task, device: torch.device, out: Path | None, room: Room | None = None
    ) -> None:
        super().__init__(preset, task, device)
        self.out, self.room = out, room
        if out is not None:
            self.what_is_left = "; the last snapshot with finite weights is kept"

    def reports(self, between: Callable[[], None] = lambda: None) -> Iterator[Progress]:
        """Train to the end, yielding a report every `log_every` steps.

        `between` is called before every step; it may take its time (a pause), change the learning rate to come, or raise
        `Stopped`.
        """
        try:
            while True:
                if (progress := self.due()) is not None:
                    yield progress
                    if progress.done:
                        return
                between()
                clock = time.perf_counter()
                self.train_step()
                self.seconds += time.perf_counter() - clock
        except (GeneratorExit, KeyboardInterrupt, Stopped, NoRoomError):
            finished = bool(self.rows) and self.rows[-1]["done"]
            if not (self.updating or finished):
                self.save_state()
            raise

    def train_step(self) -> None:
        """One update: on a GPU one launch, on a processor its operations alone. Raises `TrainingError` when the loss or the
        gradient is not a number."""
        self.take_step()

    @cached_property
    def take_step(self) -> Callable[[], None]:
        """How this run takes its steps: found for the first, as a run may also be one of a stack."""
        quick = {"cuda": GraphedStep, "cpu": ReplayedStep}.get(self.device.type)
        return super().train_step if quick is None else quick(self).take

    def due(self) -> Progress | None:
        """Do what is due at this step, before the next: a snapshot, and a report. It is due again when an interrupt came before
        it was done."""
        config = self.config
        if config.snapshot_every and self.step % config.snapshot_every == 0:
            self.keep_snapshot()
            self.save_state()
        if not self.window.steps or (self.step % config.log_every and self.step != config.steps):
            return None
        progress = self.report()
        if progress.done:
            self._finish()
        return progress

    def keep_snapshot(self) -> None:
        """Keep the weights of this step to look at; nothing where snapshots are off. Raises `NoRoomError`."""
        if self.out is None or not self.config.snapshot_every:
            return
        if not snapshot_file(self.out, self.step).exists():
            self.take_room(weights_on_disk(self.preset), f"A snapshot of step {self.step:,}")
        self._write_snapshot(self.out)
        thin_out(self.out, self.config.snapshot_every)

    def _write_snapshot(self, out: Path) -> None:
        try:
            write_snapshot(out, self.step, Checkpoint(self.model, self.task))
        except CheckpointError as error:
            raise TrainingError(f"The run stops at step {self.step}. {error}") from None

    def check_room_for_snapshot(self) -> None:
        """Raise `NoRoomError` where the snapshot of one step more could not be kept."""
        if self.room is not None and self.out is not None and self.config.snapshot_every:
            self.room.check(weights_on_disk(self.preset), "A snapshot of the next step")

    def take_room(self, n: int, what: str) -> None:
        """Say that `n` bytes more will be written. Raises `NoRoomError` where they are more than may be kept."""
        if self.room is not None:
            self.room.check(n, what)
            self.room.wrote(n)

    def _finish(self) -> None:
        if self.out is not None:  # in place of the state, which is larger: there is room for it
            if self.config.snapshot_every:
                self._write_snapshot(self.out)
            save(self.checkpoint(), self.out)
            remove_state(self.out)

    def save_state(self) -> None:
        """Write down where the run stands, in place of where it stood before. Raises `NoRoomError` the first time."""
        if self.out is None:
            return
        if not (self.out / STATE).exists():
            self.take_room(3 * weights_on_disk(self.preset), "The state of this run")
        values = {
            "preset": self.preset.name,
            "model": self.preset.model.to_json(),
            "task": self.preset.task.to_json(),
            "train": self.config.to_json(),
            "step": self.step,
            "seconds": self.seconds,
            "window": vars(self.window),
            "rows": self.rows,
        }
        write_state(self.out, State(self.optimiser.state(), values))

    def restore(self) -> None:
        """Go on where the run in `out` stood. Raises `TrainingError` when it was another run."""
        if self.out is None:
            raise TrainingError("Resuming needs the folder of the run; give it as out.")
        state = read_state(self.out)
        step = state.values.get("step")
        for name, config in (("model", self.preset.model), ("task", self.preset.task), ("train", self.config)):
            try:
                had = type(config).from_json(state.values.get(name))
            except ConfigError:
                had = None
            if _until(step, had) != _until(step, config):
                raise TrainingError(
                    f"The run in {self.out} had other {name} settings, so it cannot be resumed as this one."
                )
        try:
            self.optimiser.restore(state.tensors)
            self.step = state.values["step"]
            self.seconds = state.values["seconds"]
            self.window = Window(**state.values["window"])
            self.rows = state.values["rows"]
        except (KeyError, TypeError, RuntimeError):
            raise TrainingError(f"The run in {self.out} cannot be resumed: its state is not a whole one.") from None


def _until(step: Any, config: Config | None) -> Config | None:
    """A configuration without the changes of the learning rate that lie ahead of a step."""
    if not (isinstance(config, TrainConfig) and isinstance(step, int)):
        return config
    return config.replace(lr_changes=tuple(change for change in config.lr_changes if change[0] <= step))
