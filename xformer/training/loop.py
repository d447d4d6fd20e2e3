"""The training loop.

A step depends on nothing but the weights, the optimiser, the seed and the step number: data and dropout are drawn from
(seed, step). A run that is stopped and resumed therefore ends, on a CPU, in the same bits as one that never stopped.

    OUT/snapshots/000200.safetensors   a complete checkpoint of step 200
    OUT/state.safetensors              weights, optimiser and step of an interrupted run
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from xformer.checkpoints import Checkpoint, save
from xformer.config import Config, TrainConfig
from xformer.decoding import reads_ahead
from xformer.disk_quota import Room
from xformer.errors import CheckpointError, ConfigError, QuotaExceededError, TrainingError
from xformer.files import STATE, parse_header, snapshot_file, snapshot_steps, strict_json, write_atomically
from xformer.formatting import percent
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.tasks import Batch, Score, Task, score
from xformer.tasks.batch import cross_entropy
from xformer.tasks.framing import generator
from xformer.tasks.task import CHUNK
from xformer.trace import record
from xformer.training.card import MAX_STATE_HEADER, fitting
from xformer.training.evaluate import Progress, score_batches
from xformer.training.limits import check_memory, weights_on_disk
from xformer.training.recipe import (
    adamw,
    clip,
    learning_rate,
    restore_training_state,
    training_state,
    update,
    with_peak,
    with_random_positions,
)


def train(
    preset: Preset | str, *, out: str | Path | None = None, device: str = "auto", resume: bool = False
) -> Checkpoint:
    """Train a preset to its end and return the trained model with its task and its card.

    Args:
        preset: The name of a preset, or a `Preset` of your own.
        out: A folder for snapshots, the state to resume from and, at the end, the checkpoint that `load` reads.
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the interrupted run in `out`.

    Returns:
        The checkpoint. Its card holds the reports under "curve".

    Raises:
        ConfigError: The configurations do not fit each other, or not into the free memory. Nothing was written.
        TrainingError: The loss is no longer a number, or there is nothing to resume.

    Example:
        >>> import xformer
        >>> checkpoint = xformer.train("reverse-small")  # doctest: +SKIP
        >>> checkpoint.card["curve"][-1]["held_out_exact_match"]  # doctest: +SKIP
        1.0
    """
    run = _run_of(preset, out, device, resume)
    for _ in run.reports():
        pass
    return run.checkpoint()


def iter_train(
    preset: Preset | str, *, out: str | Path | None = None, device: str = "auto", resume: bool = False
) -> Generator[Progress]:
    """Train a preset and yield a report every `log_every` steps; the last one has `done` set.

    Closing the generator early writes the state, so `resume=True` continues from that step. So does an interrupt, except
    in the middle of an update: then the state is that of the last snapshot.

    Args:
        preset: The name of a preset, or a `Preset` of your own.
        out: A folder for snapshots, the state to resume from and, at the end, the checkpoint that `load` reads.
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the interrupted run in `out`.

    Returns:
        A generator of `Progress`.

    Raises:
        ConfigError: The configurations do not fit each other, or not into the free memory. Nothing was written.
        TrainingError: The loss is no longer a number, or there is nothing to resume.

    Example:
        >>> import xformer
        >>> progress = next(xformer.iter_train("reverse-small", device="cpu"))
        >>> progress.step, progress.done
        (20, False)
    """
    return _run_of(preset, out, device, resume).reports()


def _run_of(preset: Preset | str, out: str | Path | None, device: str, resume: bool) -> Run:
    preset = preset_named(preset) if isinstance(preset, str) else preset
    task = Task(preset.task)
    task.check_fits(preset.model)
    chosen = choose_device(device)
    check_memory(preset, chosen.type)
    run = Run(preset, task, chosen, None if out is None else Path(out))
    if resume:
        run.restore()
    return run


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device named "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1".

    Raises:
        ConfigError: There is no such device.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {wanted!r}; for example auto.")
    if not torch.cuda.is_available():
        raise ConfigError(f"device={wanted!r} was asked for, but this machine has no usable GPU; use auto or cpu.")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"This machine has {torch.cuda.device_count()} GPUs, got {wanted!r}; for example cuda:0.")
    return torch.device(wanted)


def prepare_process(threads: int = 1) -> None:
    """Settle a process that trains small models. For the owner of a process to call, from the thread that trains.

    The operations of a small model end before a second thread is awake, and denormal numbers (below 1e-38) take a processor
    a hundred times as long as others, so they become zero.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


MOST_ODD = 5
"""The most snapshots at steps that are not a multiple of `snapshot_every`."""


class Stopped(Exception):  # noqa: N818  no error, like StopIteration
    """Raised between two steps by the caller of `Run.reports` to end the run there; the run writes its state first."""


@dataclass
class Window:
    """The sums since the last report, and the figures of the last step."""

    loss: float = 0.0
    steps: int = 0
    tokens: int = 0
    last_loss: float = 0.0
    gradient_norm: float = 0.0


class Run:
    """One model in training. With `out` it keeps snapshots and its state in that folder."""

    def __init__(
        self, preset: Preset, task: Task, device: torch.device, out: Path | None, room: Room | None = None
    ) -> None:
        self.preset, self.task, self.device = preset, task, device
        self.out, self.room = out, room
        self.config: TrainConfig = preset.train
        seed = self.config.seed
        self.model = Transformer(preset.model, generator(seed, "init", 0)).to(device).train()
        self.optimiser = adamw(self.model, self.config)
        self.step = 0
        self.seconds = 0.0
        self.window = Window()
        self.rows: list[dict[str, Any]] = []
        self.updating = False
        """True while weights, optimiser and step number do not belong to the same step."""
        self.reads_ahead: bool | None = None
        """Whether outputs depend on later tokens; None before the first report."""
        self.batches: Batch | None = None
        self.packed = self.config.batch_size % 2 == 0
        n = min(self.config.held_out, task.rule.unseen or self.config.held_out)
        self.held_out = task.sample(n, seed=seed, purpose="held-out", packed=n % 2 == 0, device=device)
        self.probe = task.probe(seed)

    def reports(self, between: Callable[[], None] = lambda: None) -> Generator[Progress]:
        """Train to the end and yield a report every `log_every` steps.

        `between` is called before every step. It may wait, change the learning rate, or raise `Stopped`.
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
        except (GeneratorExit, KeyboardInterrupt, Stopped, QuotaExceededError):
            finished = bool(self.rows) and self.rows[-1]["done"]
            if not (self.updating or finished):
                self.save_state()
            raise

    def train_step(self) -> None:
        """Make one update. Raises `TrainingError` when the loss or the gradient is not a number."""
        batch = self.batch(self.step)
        found = self.find_gradient(batch)
        lr = learning_rate(self.config, self.step + 1)
        self.updating = True
        update(self.optimiser, lr)
        loss, norm = found.tolist()
        self.took_step(loss, norm, batch.tokens.numel())

    def find_gradient(self, batch: Batch) -> Float[Tensor, "2"]:
        """Leave the clipped gradient of the batch in the parameters. Returns the loss, and the norm before clipping."""
        dropout = None
        if self.preset.model.dropout:
            dropout = generator(self.config.seed, "dropout", self.step + 1, self.device)
        self.optimiser.zero_grad()
        loss = cross_entropy(batch.logits(self.model, generator=dropout), batch.labels)
        loss.backward()
        return torch.stack((loss.detach(), clip(self.model, self.config.clip_norm)))

    def took_step(self, loss: float, gradient_norm: float, n_tokens: int) -> None:
        """Count a finished update. Raises `TrainingError` when its loss or gradient is not a number."""
        self.step += 1
        self.window.gradient_norm = self._finite("gradient's norm", gradient_norm)
        self.window.last_loss = self._finite("loss", loss)
        self.window.loss += self.window.last_loss
        self.window.steps += 1
        self.window.tokens += n_tokens
        self.updating = False

    def _finite(self, what: str, value: float) -> float:
        if math.isfinite(value):
            return value
        lr = learning_rate(self.config, self.step)
        kept = "" if self.out is None else "; the last snapshot with finite weights is kept"
        told = f"The {what} became {value} at step {self.step}, at a learning rate of {lr:g}, so the run stops"
        raise TrainingError(f"{told}; try a smaller one, for example {lr / 10:g}{kept}.")

    def batch(self, step: int) -> Batch:
        """Return the batch of a step. The batches of `CHUNK` steps are drawn at once."""
        place = step % CHUNK
        if self.batches is None or place == 0:
            chunk: dict[str, Any] = {"step": step // CHUNK, "steps": CHUNK, "purpose": "train", "packed": self.packed}
            size, seed = self.config.batch_size, self.config.seed
            self.batches = self.task.sample(size, seed=seed, device=self.device, **chunk)
        rows = len(self.batches.tokens) // CHUNK
        batch = self.batches.rows(place * rows, (place + 1) * rows)
        if not self.config.random_positions:
            return batch
        draw = generator(self.config.seed, "positions", step)
        return with_random_positions(batch, self.preset.model.max_len, draw)

    def due(self) -> Progress | None:
        """Keep the snapshot and make the report that this step asks for. Returns the report, or None.

        After an interrupt the same step is due again.
        """
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

    def report(self) -> Progress:
        """Score the model on held-out examples and begin a new window. Raises `TrainingError` for a loss that is no number."""
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
        progress = replace(progress, **self._remarks(progress))
        self.rows, self.window = [*self.rows, progress.row()], Window()
        return progress

    def _remarks(self, progress: Progress) -> dict[str, Any]:
        """Return the note of a report, and whether it ends the run, as changes to the report."""
        config = self.config
        exact = progress.held_out.exact_match
        if config.target and exact >= config.target:
            return {"note": f"Reached the target: {percent(exact)} exact match at step {progress.step}.", "done": True}
        is_late = progress.step >= 0.6 * config.steps
        if is_late and progress.loss > self.task.rule.stalled_above and not any(row["note"] for row in self.rows):
            still = f"at step {progress.step} of {config.steps} its loss is still {progress.loss:.2f}"
            return {"note": f"This run has stalled: {still}. Another seed or a longer warm-up usually helps."}
        return {}

    @torch.no_grad()
    def _held_out_score(self) -> Score:
        """Score under teacher forcing, and by decoding where outputs depend on later tokens."""
        if self.reads_ahead is None:
            few = self.task.sample(4, seed=self.config.seed, purpose="held-out", device=self.device)
            self.reads_ahead = self.task.is_decoded and reads_ahead(self.model, few)
        found = score(self.held_out.logits(self.model), self.held_out)
        if not self.reads_ahead:
            return found
        one_a_row = self.task.sample(found.samples, seed=self.config.seed, purpose="held-out", device=self.device)
        return score_batches(self.model, self.task, iter([one_a_row]))

    def probe_scores(self) -> dict[str, list[float]]:
        """Return the task score of each head on one fixed unseen input; see `Task.head_scores`."""
        inputs = [prompt.to(self.device) for prompt in (self.probe.stream, self.probe.target) if prompt is not None]
        trace = record(self.model, *inputs, keep=["*.pattern"])
        return self.task.head_scores(trace, self.probe)

    def change_rate(self, peak: float) -> None:
        """Follow the schedule with this peak from the next step on. Raises `ConfigError` for a peak that is not valid."""
        self.config = with_peak(self.config, self.step, peak)
        self.preset = replace(self.preset, train=self.config)

    def begin_with(self, weights: Transformer) -> None:
        """Start from the weights of another model of the same shape."""
        self.model.load_state_dict(weights.state_dict())

    def checkpoint(self) -> Checkpoint:
        """Return the model as it stands, with its card."""
        card: dict[str, Any] = {
            "preset": self.preset.name, "title": self.preset.title, "about": self.preset.about, "seed": self.config.seed,
            "step": self.step, "train": self.config.to_json(), "device": self.device.type, "torch": torch.__version__,
            "seconds": round(self.seconds, 2), "curve": fitting(self.rows),
        }  # fmt: skip
        return Checkpoint(self.model, self.task, card)

    def keep_snapshot(self) -> None:
        """Write the weights of this step, unless snapshots are off. Raises `QuotaExceededError`."""
        if self.out is None or not self.config.snapshot_every:
            return
        if not snapshot_file(self.out, self.step).exists():
            self.take_room(weights_on_disk(self.preset), f"A snapshot of step {self.step:,}")
        self._write_snapshot(self.out)
        single = [step for step in snapshot_steps(self.out) if step % self.config.snapshot_every]
        for step in single[:-MOST_ODD]:
            snapshot_file(self.out, step).unlink(missing_ok=True)

    def _write_snapshot(self, out: Path) -> None:
        try:
            save(Checkpoint(self.model, self.task), snapshot_file(out, self.step))
        except CheckpointError as error:
            raise TrainingError(f"The run stops at step {self.step}. {error}") from None

    def take_room(self, n: int, what: str) -> None:
        """Reserve `n` bytes of the disk. Raises `QuotaExceededError` when they do not fit."""
        if self.room is not None:
            self.room.check(n, what)
            self.room.wrote(n)

    def _finish(self) -> None:
        if self.out is not None:  # in place of the state, which is larger: it fits
            if self.config.snapshot_every:
                self._write_snapshot(self.out)
            save(self.checkpoint(), self.out)
            (self.out / STATE).unlink(missing_ok=True)

    def has_finite_weights(self) -> bool:
        """Return whether all weights are numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def save_state(self) -> None:
        """Replace the state in the folder by that of this step. Raises `QuotaExceededError` the first time."""
        if self.out is None:
            return
        if not (self.out / STATE).exists():
            self.take_room(3 * weights_on_disk(self.preset), "The state of this run")
        values: dict[str, Any] = {"preset": self.preset.name, "step": self.step, "seconds": self.seconds}
        values |= {name: config.to_json() for name, config in self._settings().items()}
        values |= {"window": vars(self.window), "rows": self.rows}
        tensors = training_state(self.model, self.optimiser)
        write_atomically(self.out / STATE, safetensors.torch.save(tensors, {"state": json.dumps(values)}))

    def _settings(self) -> dict[str, Config]:
        return {"model": self.preset.model, "task": self.preset.task, "train": self.config}

    def restore(self) -> None:
        """Continue the run in `out`. Raises `TrainingError` when its settings are not those of this run.

        Changes of the learning rate after the step of the state may differ.
        """
        if self.out is None:
            raise TrainingError("Resuming needs the folder of the run; give it as out.")
        state = read_state(self.out)
        step = state.values.get("step")
        for name, config in self._settings().items():
            try:
                had = type(config).from_json(state.values.get(name))
            except ConfigError:
                had = None
            if _until(step, had) != _until(step, config):
                what = f"The run in {self.out} had other {name} settings"
                raise TrainingError(f"{what}, so it cannot be resumed as this one.")
        try:
            restore_training_state(self.model, self.optimiser, state.tensors)
            self.step = state.values["step"]
            self.seconds = state.values["seconds"]
            self.window = Window(**state.values["window"])
            self.rows = state.values["rows"]
        except (KeyError, TypeError, RuntimeError):
            raise TrainingError(f"The run in {self.out} cannot be resumed: its state is not a whole one.") from None


@dataclass(frozen=True)
class State:
    """The state of a run: tensors, and everything else as plain JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def forget_after(out: Path, step: int) -> None:
    """Remove the snapshots after a step, from which the run resumes."""
    for later in snapshot_steps(out):
        if later > step:
            snapshot_file(out, later).unlink(missing_ok=True)


def forget_unfinished(out: Path) -> None:
    """Remove half-written files of a killed process. No other process may write there."""
    for file in out.rglob("*.part"):
        file.unlink(missing_ok=True)


def read_state(out: Path) -> State:
    """Read the state of an interrupted run. Raises `TrainingError` when there is none, or it is damaged."""
    if not (out / STATE).is_file():
        raise TrainingError(f"There is no run to resume in {out}; start one without resuming.")
    try:
        content = (out / STATE).read_bytes()
        header = parse_header(content, MAX_STATE_HEADER)
        values = strict_json(header.metadata.get("state", ""), "state")
        tensors = safetensors.torch.load(content)
    except (CheckpointError, SafetensorError) as error:
        raise TrainingError(f"The run in {out} cannot be resumed: {error}") from None
    if not isinstance(values, dict):
        raise TrainingError(f"The run in {out} cannot be resumed: its state is not a whole one.")
    return State(tensors, values)


def _until(step: Any, config: Config | None) -> Config | None:
    """Return the configuration without the changes of the learning rate after a step."""
    if not (isinstance(config, TrainConfig) and isinstance(step, int)):
        return config
    return config.replace(lr_changes=tuple(change for change in config.lr_changes if change[0] <= step))
