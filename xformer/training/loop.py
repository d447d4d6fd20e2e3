"""The training loop: a generator of `Progress` that owns nothing but its own model.

Every step is a function of (weights, optimiser, seed, step): the data are drawn from (seed, step), dropout too. So a run that
is stopped and resumed ends, on a CPU, in the same bits as one that never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import Checkpoint, save
from xformer.config import Config, TrainConfig
from xformer.errors import CheckpointError, ConfigError, NoRoomError, TrainingError
from xformer.greedy import reads_ahead
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.room import Room
from xformer.tasks import Batch, Score, Task, score
from xformer.tasks.sampling import generator
from xformer.tasks.scoring import cross_entropy
from xformer.tasks.task import CHUNK
from xformer.trace import record
from xformer.training.curve import fitting
from xformer.training.device import choose_device
from xformer.training.evaluate import score_batches
from xformer.training.limits import check_memory
from xformer.training.optimiser import FlatAdamW
from xformer.training.progress import Progress
from xformer.training.resource_needs import weights_on_disk
from xformer.training.schedule import learning_rate, with_peak
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
from xformer.words import percent

FEW = 4
"""Held-out examples on which a run finds out whether its model reads ahead."""


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


@dataclass
class Window:
    """What is summed up between two reports."""

    loss: float = 0.0
    steps: int = 0
    tokens: int = 0
    last_loss: float = 0.0
    gradient_norm: float = 0.0
    """Of the last step, as is `last_loss`."""


class Stopped(Exception):  # noqa: N818  like StopIteration, it is no error
    """Raised between two steps by whoever drives a run: it writes its state down and ends."""


class Run:
    """One training run: a model, its optimiser, and where it stands."""

    def __init__(
        self, preset: Preset, task: Task, device: torch.device, out: Path | None, room: Room | None = None
    ) -> None:
        self.preset, self.task, self.device, self.out, self.room = preset, task, device, out, room
        self.config: TrainConfig = preset.train
        seed = self.config.seed
        self.model = Transformer(preset.model, generator(seed, "init", 0, "cpu")).to(device).train()
        self.optimiser = FlatAdamW(self.model, self.config)
        self.step = 0
        self.seconds = 0.0
        self.window = Window()
        self.rows: list[dict[str, Any]] = []
        self.updating = False
        """Whether weights, optimiser and step do not belong together just now."""
        self.reads_ahead: bool | None = None
        """Whether outputs see what comes after them; asked once, at the first report."""
        self.batches: Batch | None = None
        self.packed = self.config.batch_size % 2 == 0
        n = min(self.config.held_out, task.rule.unseen or self.config.held_out)
        self.held_out = task.sample(n, seed=seed, purpose="held-out", packed=n % 2 == 0, device=device)
        self.probe = task.probe(seed)

    def reports(self, between: Callable[[], None] = lambda: None) -> Iterator[Progress]:
        """Train to the end, yielding a report every `log_every` steps.

        `between` is called before every step; it may take its time (a pause), change the learning rate to come, or raise
        `Stopped`.
        """
        config = self.config  # what may change while it runs, the learning rates, is asked for anew at each step
        try:
            while True:  # what is due at a step is due again when an interrupt came before it was done
                if config.snapshot_every and self.step % config.snapshot_every == 0:
                    self.keep_snapshot()
                    self.save_state()
                if self.window.steps and (self.step % config.log_every == 0 or self.step == config.steps):
                    progress = self._report()
                    if progress.done:
                        self._finish()
                    yield progress
                    if progress.done:
                        return
                between()
                clock = time.perf_counter()
                self._train_step()
                self.seconds += time.perf_counter() - clock
        except (GeneratorExit, KeyboardInterrupt, Stopped, NoRoomError):
            finished = bool(self.rows) and self.rows[-1]["done"]
            if not (self.updating or finished):
                self.save_state()
            raise

    def _train_step(self) -> None:
        """One update. Raises `TrainingError` when the loss or the gradient is not a number."""
        batch, step = self._batch(self.step), self.step + 1
        lr = learning_rate(self.config, step)
        dropout = None
        if self.preset.model.dropout:
            dropout = generator(self.config.seed, "dropout", step, self.device)
        self.optimiser.clear()
        loss = cross_entropy(batch.logits(self.model, generator=dropout), batch.labels)
        loss.backward()
        self.updating = True
        norm = self.optimiser.update(lr)
        self.step = step
        self.window.gradient_norm = self._finite("gradient's norm", norm.item())
        self.window.last_loss = self._finite("loss", loss.item())
        self.window.loss += self.window.last_loss
        self.window.steps += 1
        self.window.tokens += batch.tokens.numel()
        self.updating = False

    def _finite(self, what: str, value: float) -> float:
        """The value. Raises `TrainingError` when it is no longer a number: then neither are the weights, or soon."""
        if math.isfinite(value):
            return value
        lr = learning_rate(self.config, self.step)
        kept = "" if self.out is None else "; the last snapshot with finite weights is kept"
        raise TrainingError(
            f"The {what} became {value} at step {self.step}, at a learning rate of {lr:g}, so the run stops; "
            f"try a smaller one, for example {lr / 10:g}{kept}."
        )

    def _batch(self, step: int) -> Batch:
        """The batch of a step, out of the many that are drawn at once."""
        n, place = self.config.batch_size, step % CHUNK
        if self.batches is None or place == 0:
            self.batches = self.task.sample(
                n,
                seed=self.config.seed,
                step=step // CHUNK,
                steps=CHUNK,
                purpose="train",
                packed=self.packed,
                device=self.device,
            )
        rows = len(self.batches.tokens) // CHUNK
        return self.batches.rows(place * rows, (place + 1) * rows)

    def _report(self) -> Progress:
        config, window = self.config, self.window
        self.model.eval()
        held_out = self._held_out_score()
        self._finite("held-out loss", held_out.loss)
        scores = self.probe_scores()
        self.model.train()
        earlier = self.rows[-1]["seconds"] if self.rows else 0.0
        progress = Progress(
            step=self.step,
            steps=config.steps,
            loss=window.loss / max(1, window.steps),
            held_out=held_out,
            learning_rate=learning_rate(config, self.step),
            gradient_norm=window.gradient_norm,
            seconds=self.seconds,
            tokens_per_second=window.tokens / max(1e-9, self.seconds - earlier),
            scores=scores,
            done=self.step == config.steps,
        )
        progress = replace(progress, **_remarks(progress, config, self.rows, self.task.rule.stalled_above))
        self.rows, self.window = [*self.rows, progress.row()], Window()
        return progress

    @torch.no_grad()
    def _held_out_score(self) -> Score:
        """How good it is now: under teacher forcing, and decoding where that can find another share of answers right."""
        if self.reads_ahead is None:
            few = self.task.sample(FEW, seed=self.config.seed, purpose="held-out", device=self.device)
            self.reads_ahead = self.task.is_decoded and reads_ahead(self.model, few)
        found = score(self.held_out.logits(self.model), self.held_out)
        if not self.reads_ahead:
            return found
        one_a_row = self.task.sample(found.samples, seed=self.config.seed, purpose="held-out", device=self.device)
        return score_batches(self.model, self.task, iter([one_a_row]))

    def probe_scores(self) -> dict[str, list[float]]:
        """How much each head does of what the task needs, on one fixed unseen input; see `Task.head_scores`."""
        inputs = [prompt.to(self.device) for prompt in (self.probe.stream, self.probe.target) if prompt is not None]
        trace = record(self.model, *inputs, keep=["*.pattern"])
        return self.task.head_scores(trace, self.probe)

    def checkpoint(self) -> Checkpoint:
        """The model as it stands, with its card."""
        return Checkpoint(self.model, self.task, self.card())

    def card(self) -> dict[str, Any]:
        """Where the model comes from and how it went."""
        return {
            "preset": self.preset.name,
            "title": self.preset.title,
            "about": self.preset.about,
            "seed": self.config.seed,
            "step": self.step,
            "train": self.config.to_json(),
            "device": self.device.type,
            "torch": torch.__version__,
            "seconds": round(self.seconds, 2),
            "curve": fitting(self.rows),
        }

    def change_rate(self, peak: float) -> None:
        """From the next step on, follow the schedule of a run with this peak. Raises `ConfigError` for a peak that is none."""
        self.config = with_peak(self.config, self.step, peak)
        self.preset = replace(self.preset, train=self.config)

    def begin_with(self, weights: Transformer) -> None:
        """Start from the weights of another model of the same shape, in place of fresh ones."""
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), weights.parameters(), strict=True):
                mine.copy_(theirs)

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


def _remarks(
    progress: Progress, config: TrainConfig, rows: list[dict[str, Any]], stalled_above: float
) -> dict[str, Any]:
    """What there is to say about a report, as changes to it."""
    if config.target and progress.held_out.exact_match >= config.target:
        reached = f"Reached the target: {percent(progress.held_out.exact_match)} exact match at step {progress.step}."
        return {"note": reached, "done": True}
    late = progress.step >= 0.6 * config.steps
    said = any(row["note"] for row in rows)
    if late and not said and progress.loss > stalled_above:
        return {
            "note": f"This run has stalled: at step {progress.step} of {config.steps} its loss is still "
            f"{progress.loss:.2f}. Another seed or a longer warm-up usually helps."
        }
    return {}
