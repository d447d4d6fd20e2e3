"""The training loop.

A step depends only on the weights, the optimiser, the seed and the step number: data and dropout are drawn from (seed, step).
On a CPU, a run that is stopped and resumed therefore ends in the same bits as one that never stopped.

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
from xformer.disk_quota import DiskQuota
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
    """Train a preset and return the trained model with its task and its card.

    Args:
        preset: The name of a preset, or your own `Preset`.
        out: A folder for snapshots, the state to resume from and the final checkpoint, which `load` reads.
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the interrupted run in `out`.

    Returns:
        The checkpoint. Its card holds the reports under "curve".

    Raises:
        ConfigError: The configurations are incompatible, or the run needs more memory than is free. Nothing is written.
        TrainingError: The loss became non-finite, or there is nothing to resume.

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

    Closing the generator early writes the state, so that `resume=True` continues from that step. An interrupt does the same,
    except in the middle of an update: then training resumes from the last saved state.

    Args:
        preset: The name of a preset, or your own `Preset`.
        out: A folder for snapshots, the state to resume from and the final checkpoint, which `load` reads.
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the interrupted run in `out`.

    Returns:
        A generator of `Progress`.

    Raises:
        ConfigError: The configurations are incompatible, or the run needs more memory than is free. Nothing is written.
        TrainingError: The loss became non-finite, or there is nothing to resume.

    Example:
        >>> import xformer
        >>> progress = next(xformer.iter_train("reverse-small", device="cpu"))
        >>> progress.step, progress.done
        (20, False)
    """
    return _run_of(preset, out, device, resume).reports()


def _run_of(preset: Preset | str, out: str | Path | None, device: str, resume: bool) -> Run:
    preset = preset_named(preset)
    task = Task(preset.task)
    task.check_fits(preset.model)
    chosen = choose_device(device)
    check_memory(preset, chosen.type)
    run = Run(preset, task, chosen, None if out is None else Path(out))
    if resume:
        run.restore()
    return run


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device for "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".

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
        raise ConfigError(f"device={wanted!r} was requested, but this machine has no usable GPU; use auto or cpu.")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"This machine has {torch.cuda.device_count()} GPUs, got {wanted!r}; for example cuda:0.")
    return torch.device(wanted)


def prepare_process(threads: int = 1) -> None:
    """Configure a process for training small models. Only the owner of the process should call it, from the training thread.

    The operations of a small model finish before a second thread wakes up. Denormal numbers (below 1e-38) are flushed to zero,
    because a CPU takes a hundred times as long for them.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


MAX_EXTRA_SNAPSHOTS = 5
"""Largest number of snapshots kept at steps that are not a multiple of `snapshot_every`."""


class Stopped(Exception):  # noqa: N818  not an error, like StopIteration
    """Raised by the `between` callback of `Run.reports` to end the run between two steps; the run saves its state first."""


@dataclass
class Window:
    """Sums since the last report, and the metrics of the last step."""

    loss: float = 0.0
    steps: int = 0
    tokens: int = 0
    last_loss: float = 0.0
    gradient_norm: float = 0.0


class Run:
    """One model in training. With `out`, snapshots and the state to resume from are written to that folder."""

    def __init__(
        self, preset: Preset, task: Task, device: torch.device, out: Path | None, room: DiskQuota | None = None
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
        """True during an update, while weights, optimiser and step number are inconsistent."""
        self.reads_ahead: bool | None = None
        """Whether outputs depend on later tokens; None before the first report."""
        self.batches: Batch | None = None
        self.packed = self.config.batch_size % 2 == 0
        n = min(self.config.held_out, task.rule.n_held_out or self.config.held_out)
        self.held_out = task.sample(n, seed=seed, purpose="held-out", packed=n % 2 == 0, device=device)
        self.probe = task.probe(seed)

    def reports(self, between: Callable[[], None] = lambda: None) -> Generator[Progress]:
        """Train to the end and yield a report every `log_every` steps.

        `between` is called before every step and may wait, change the learning rate, or raise `Stopped`.
        """
        try:
            while True:
                if (progress := self.due()) is not None:
                    yield progress
                    if progress.done:
                        return
                between()
                self.train_step()
        except (GeneratorExit, KeyboardInterrupt, Stopped, QuotaExceededError):
            finished = bool(self.rows) and self.rows[-1]["done"]
            if not (self.updating or finished):
                self.save_state()
            raise

    def train_step(self) -> None:
        """Take one training step. Raises `TrainingError` if the loss or the gradient is not finite."""
        clock = time.perf_counter()
        batch = self.batch(self.step)
        loss_and_norm = self.find_gradient(batch)
        lr = learning_rate(self.config, self.step + 1)
        self.updating = True
        update(self.optimiser, lr)
        loss, norm = loss_and_norm.tolist()
        self.seconds += time.perf_counter() - clock
        self.finish_step(loss, norm, batch.tokens.numel())

    def find_gradient(self, batch: Batch) -> Float[Tensor, "2"]:
        """Store the clipped gradient of the batch in the parameters. Returns the loss, and the norm before clipping."""
        dropout = None
        if self.preset.model.dropout:
            dropout = generator(self.config.seed, "dropout", self.step + 1, self.device)
        self.optimiser.zero_grad()
        loss = cross_entropy(batch.logits(self.model, generator=dropout), batch.labels)
        loss.backward()
        return torch.stack((loss.detach(), clip(self.model, self.config.clip_norm)))

    def finish_step(self, loss: float, gradient_norm: float, n_tokens: int) -> None:
        """Count a completed update. Raises `TrainingError` if its loss or gradient is not finite."""
        self.step += 1
        self.window.gradient_norm = self._finite("gradient norm", gradient_norm)
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
        reason = f"The {what} became {value} at step {self.step}, at a learning rate of {lr:g}, so the run stops"
        raise TrainingError(f"{reason}; try a smaller one, for example {lr / 10:g}{kept}.")

    def batch(self, step: int) -> Batch:
        """Return the batch of a step. Batches are drawn for `CHUNK` steps at a time."""
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
        """Write the snapshot and make the report that are due at this step. Returns the report, or None.

        After an interrupt, the same step is due again.
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
        """Score the model on held-out examples and start a new window. Raises `TrainingError` for a non-finite loss."""
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
        """Return the fields of a report to replace: `note`, and `done` if the run has reached its target."""
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
        """Score with teacher forcing, or by decoding if outputs depend on later tokens."""
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
        trace = record(self.model, self.probe.input_ids, self.probe.target, keep=["*.pattern"])
        return self.task.head_scores(trace, self.probe)

    def change_rate(self, peak: float) -> None:
        """Use this peak learning rate from the next step on. Raises `ConfigError` for an invalid value."""
        self.config = with_peak(self.config, self.step, peak)
        self.preset = replace(self.preset, train=self.config)

    def begin_with(self, weights: Transformer) -> None:
        """Copy the weights of another model of the same shape."""
        self.model.load_state_dict(weights.state_dict())

    def checkpoint(self) -> Checkpoint:
        """Return the current model with its card."""
        card: dict[str, Any] = {
            "preset": self.preset.name, "title": self.preset.title, "about": self.preset.about, "seed": self.config.seed,
            "step": self.step, "train": self.config.to_json(), "device": self.device.type, "torch": torch.__version__,
            "seconds": round(self.seconds, 2), "curve": fitting(self.rows),
        }  # fmt: skip
        return Checkpoint(self.model, self.task, card)

    def keep_snapshot(self) -> None:
        """Write a snapshot of this step, unless snapshots are off. Raises `QuotaExceededError`."""
        if self.out is None or not self.config.snapshot_every:
            return
        if not snapshot_file(self.out, self.step).exists():
            self.reserve_disk(weights_on_disk(self.preset), f"A snapshot of step {self.step:,}")
        self._write_snapshot(self.out)
        single = [step for step in snapshot_steps(self.out) if step % self.config.snapshot_every]
        for step in single[:-MAX_EXTRA_SNAPSHOTS]:
            snapshot_file(self.out, step).unlink(missing_ok=True)

    def _write_snapshot(self, out: Path) -> None:
        try:
            save(Checkpoint(self.model, self.task), snapshot_file(out, self.step))
        except CheckpointError as error:
            raise TrainingError(f"The run stops at step {self.step}. {error}") from None

    def reserve_disk(self, n: int, what: str) -> None:
        """Reserve `n` bytes of the disk quota. Raises `QuotaExceededError` if they exceed it."""
        if self.room is not None:
            self.room.check(n, what)
            self.room.wrote(n)

    def _finish(self) -> None:
        if self.out is not None:  # fits into the quota, because it replaces the larger state
            if self.config.snapshot_every:
                self._write_snapshot(self.out)
            save(self.checkpoint(), self.out)
            (self.out / STATE).unlink(missing_ok=True)

    def has_finite_weights(self) -> bool:
        """Return whether all weights are finite."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def save_state(self) -> None:
        """Write the state of this step, replacing the previous one. The first call may raise `QuotaExceededError`."""
        if self.out is None:
            return
        if not (self.out / STATE).exists():
            self.reserve_disk(3 * weights_on_disk(self.preset), "The state of this run")
        values: dict[str, Any] = {"preset": self.preset.name, "step": self.step, "seconds": self.seconds}
        values |= {name: config.to_json() for name, config in self._settings().items()}
        values |= {"window": vars(self.window), "rows": self.rows}
        tensors = training_state(self.model, self.optimiser)
        write_atomically(self.out / STATE, safetensors.torch.save(tensors, {"state": json.dumps(values)}))

    def _settings(self) -> dict[str, Config]:
        return {"model": self.preset.model, "task": self.preset.task, "train": self.config}

    def restore(self) -> None:
        """Continue the run in `out`. Raises `TrainingError` if its settings differ from those of this run.

        Changes of the learning rate after the saved step may differ.
        """
        if self.out is None:
            raise TrainingError("Resuming needs the folder of the run; pass it as out.")
        state = read_state(self.out)
        step = state.values.get("step")
        for name, config in self._settings().items():
            try:
                had = type(config).from_json(state.values.get(name))
            except ConfigError:
                had = None
            if _until(step, had) != _until(step, config):
                raise TrainingError(f"The run in {self.out} had different {name} settings, so these cannot resume it.")
        try:
            restore_training_state(self.model, self.optimiser, state.tensors)
            self.step = state.values["step"]
            self.seconds = state.values["seconds"]
            self.window = Window(**state.values["window"])
            self.rows = state.values["rows"]
        except (KeyError, TypeError, RuntimeError):
            raise TrainingError(f"The run in {self.out} cannot be resumed: its state is incomplete.") from None


@dataclass(frozen=True)
class SavedState:
    """The saved state of a run: its tensors, and everything else as plain JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def forget_after(out: Path, step: int) -> None:
    """Remove the snapshots after the step from which a run resumes."""
    for later in snapshot_steps(out):
        if later > step:
            snapshot_file(out, later).unlink(missing_ok=True)


def forget_unfinished(out: Path) -> None:
    """Remove the partial files of a killed process. No other process may be writing to `out`."""
    for file in out.rglob("*.part"):
        file.unlink(missing_ok=True)


def read_state(out: Path) -> SavedState:
    """Read the state of an interrupted run. Raises `TrainingError` if there is none or it is damaged."""
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
        raise TrainingError(f"The run in {out} cannot be resumed: its state is incomplete.")
    return SavedState(tensors, values)


def _until(step: Any, config: Config | None) -> Config | None:
    """Return the configuration without the changes of the learning rate after a step."""
    if not (isinstance(config, TrainConfig) and isinstance(step, int)):
        return config
    return config.replace(lr_changes=tuple(change for change in config.lr_changes if change[0] <= step))
