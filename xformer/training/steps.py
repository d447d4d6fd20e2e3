"""One model in training, in memory alone: its steps, and the report of what they came to.

Every step is a function of (weights, optimiser, seed, step): the data are drawn from (seed, step), dropout too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.checkpoints import Checkpoint
from xformer.config import TrainConfig
from xformer.errors import TrainingError
from xformer.greedy import reads_ahead
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Batch, Score, Task, score
from xformer.tasks.sampling import generator
from xformer.tasks.scoring import cross_entropy
from xformer.tasks.task import CHUNK
from xformer.trace import record
from xformer.training.curve import fitting
from xformer.training.evaluate import score_batches
from xformer.training.optimiser import FlatAdamW
from xformer.training.progress import Progress
from xformer.training.random_positions import with_random_positions
from xformer.training.schedule import learning_rate, with_peak
from xformer.words import percent

FEW = 4
"""Held-out examples on which a run finds out whether its model reads ahead."""


@dataclass
class Window:
    """What is summed up between two reports."""

    loss: float = 0.0
    steps: int = 0
    tokens: int = 0
    last_loss: float = 0.0
    gradient_norm: float = 0.0
    """Of the last step, as is `last_loss`."""


class Training:
    """A model in training: its optimiser, its data, and where it stands."""

    what_is_left = ""
    """What is said of earlier weights when these have become no numbers."""

    def __init__(self, preset: Preset, task: Task, device: torch.device) -> None:
        self.preset, self.task, self.device = preset, task, device
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

    def train_step(self) -> None:
        """One update. Raises `TrainingError` when the loss or the gradient is not a number."""
        batch = self.batch(self.step)
        self.update(self.find_gradient(batch), batch)

    def find_gradient(self, batch: Batch) -> Float[Tensor, "2"]:
        """Leave the gradient of a batch's loss in the optimiser, clipped; returns that loss, and the norm before clipping."""
        dropout = None
        if self.preset.model.dropout:
            dropout = generator(self.config.seed, "dropout", self.step + 1, self.device)
        self.optimiser.clear()
        loss = cross_entropy(batch.logits(self.model, generator=dropout), batch.labels)
        loss.backward()
        return torch.stack((loss.detach(), self.optimiser.clip()))

    def update(self, found: Float[Tensor, "2"], batch: Batch) -> None:
        """End a step whose gradient is found. Raises `TrainingError` when the loss or the gradient is not a number."""
        lr = learning_rate(self.config, self.step + 1)
        self.updating = True
        self.optimiser.follow(lr)
        loss, norm = found.tolist()
        self.took_step(loss, norm, batch.tokens.numel())

    def took_step(self, loss: float, gradient_norm: float, n_tokens: int) -> None:
        """Count a step whose update is done. Raises `TrainingError` when its loss or gradient is not a number."""
        self.step += 1
        self.window.gradient_norm = self._finite("gradient's norm", gradient_norm)
        self.window.last_loss = self._finite("loss", loss)
        self.window.loss += self.window.last_loss
        self.window.steps += 1
        self.window.tokens += n_tokens
        self.updating = False

    def _finite(self, what: str, value: float) -> float:
        """The value. Raises `TrainingError` when it is no longer a number: then neither are the weights, or soon."""
        if math.isfinite(value):
            return value
        lr = learning_rate(self.config, self.step)
        raise TrainingError(
            f"The {what} became {value} at step {self.step}, at a learning rate of {lr:g}, so the run stops; "
            f"try a smaller one, for example {lr / 10:g}{self.what_is_left}."
        )

    def batch(self, step: int) -> Batch:
        """The batch of a step, out of the many that are drawn at once."""
        batch = self.batches_from(step, 1)
        if not self.config.random_positions:
            return batch
        draw = generator(self.config.seed, "positions", step, self.device)
        return with_random_positions(batch, self.preset.model.max_len, draw)

    def batches_from(self, step: int, n: int) -> Batch:
        """The batches of n steps, one after the other in the rows, as they are drawn: all in the chunk of the first."""
        place = step % CHUNK
        if self.batches is None or place == 0:
            self.batches = self.task.sample(
                self.config.batch_size,
                seed=self.config.seed,
                step=step // CHUNK,
                steps=CHUNK,
                purpose="train",
                packed=self.packed,
                device=self.device,
            )
        rows = len(self.batches.tokens) // CHUNK
        return self.batches.rows(place * rows, (place + n) * rows)

    def report(self) -> Progress:
        """Where the training stands, measured on unseen examples; begins a new window. Raises `TrainingError` for a loss that
        is no number."""
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
