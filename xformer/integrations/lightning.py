"""Our models trained by PyTorch Lightning, and watched in the app while they are: `pip install .[lightning]`.

module = LitTransformer(preset("reverse-small"))
trainer = lightning.Trainer(max_steps=700, callbacks=[AttentionSnapshots(module.task)])
trainer.fit(module)

`AttentionSnapshots` works with any LightningModule that holds one of our models; `LitTransformer` is the shortest of them.
`python -m xformer.integrations.lightning` trains a reverser while the app shows it as a run.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from xformer.checkpoints import Checkpoint, save
from xformer.config import TrainConfig
from xformer.disk_quota import Room, runs_folder
from xformer.errors import ConfigError, QuotaExceededError
from xformer.files import snapshot_file
from xformer.integrations.outside_run import OutsideRun
from xformer.model import Transformer
from xformer.presets import Preset, preset
from xformer.tasks import Batch, Task, score
from xformer.tasks.batch import cross_entropy
from xformer.tasks.framing import Purpose, generator
from xformer.tasks.task import CHUNK
from xformer.trace import record
from xformer.training.card import fitting
from xformer.training.evaluate import Progress, put_figures_on_card
from xformer.training.loop import prepare_process
from xformer.training.recipe import learning_rate
from xformer.training.run_store import RunStore

__all__ = ["AttentionSnapshots", "LitTransformer"]


class LitTransformer(lightning.LightningModule):
    """A preset as a LightningModule: the same weights at the start, data and schedule as `xformer.train`, Lightning's loop.

    Train it with `max_steps=preset.train.steps` and `gradient_clip_val=preset.train.clip_norm`. Its optimiser is torch's
    AdamW on the separate parameters.
    """

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset, self.task = preset, Task(preset.task)
        self.task.check_fits(preset.model)
        self.model = Transformer(preset.model, generator(preset.train.seed, "init", 0))

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        loss = cross_entropy(batch.logits(self.model), batch.labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, _index: int) -> None:
        found = score(batch.logits(self.model), batch)
        self.log_dict({"val_loss": found.loss, "val_exact_match": found.exact_match}, batch_size=found.samples)

    def configure_optimizers(self) -> Any:
        train = self.preset.train
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]  # biases and norms do not decay
        optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": train.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=1.0,  # times the schedule's rate
            betas=(train.beta1, train.beta2),
            eps=train.adam_eps,
        )
        rate: Callable[[int], float] = lambda step: learning_rate(train, step + 1)  # noqa: E731
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Batches(self.preset, "train"), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Batches(self.preset, "held-out", n_batches=1), batch_size=None)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return moved(batch, device)


class Batches(IterableDataset):
    """The batches that `xformer.train` would draw, in its order: for ever, or `n_batches` of held-out ones."""

    def __init__(self, preset: Preset, purpose: Purpose, n_batches: int | None = None) -> None:
        self.preset, self.n_batches = preset, n_batches
        self.purpose: Purpose = purpose

    def __iter__(self) -> Iterator[Batch]:
        task, train = Task(self.preset.task), self.preset.train
        n = train.batch_size if self.purpose == "train" else train.held_out + train.held_out % 2
        at_once = CHUNK if self.purpose == "train" else 1
        chunks = itertools.count() if self.n_batches is None else range(self.n_batches)
        for chunk in chunks:
            drawn = task.sample(n, seed=train.seed, step=chunk, steps=at_once, purpose=self.purpose, packed=n % 2 == 0)
            rows = len(drawn.tokens) // at_once
            for place in range(at_once):
                yield drawn.rows(place * rows, (place + 1) * rows)


class AttentionSnapshots(lightning.Callback):
    """Writes snapshots and metrics of the transformer in a module every `every` steps, as a run in `folder`.

    The default folder is that of the app. The module must contain exactly one `xformer.Transformer`. Metrics are computed on
    `held_out` unseen examples of the task. The app can show and stop the run; Lightning alone can resume it.
    """

    def __init__(
        self,
        task: Task,
        *,
        folder: str | Path | None = None,
        name: str = "Lightning",
        owner: str = "here",
        every: int = 20,
        held_out: int = 256,
        seed: int = 0,
    ) -> None:
        if every < 1:
            raise ConfigError(f"every must be 1 step or more, got {every}; for example 20.")
        self.task, self.name, self.owner, self.every, self.seed = task, name, owner, every, seed
        self.store = RunStore(folder or runs_folder())
        self.room = Room(self.store.folder)
        self.held_out = task.sample(held_out, seed=seed, purpose="held-out")
        self.probe = task.probe(seed)
        self._run: OutsideRun | None = None
        self.rows: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.gradient_norm = self.rate = 0.0
        self.step = 0

    @property
    def run(self) -> str:
        """The id of the run in the run store while it is trained, else ""."""
        return "" if self._run is None else self._run.id

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        model = transformer_in(pl_module)
        self.task.check_fits(model.config)
        steps = int(trainer.estimated_stepping_batches)
        train = TrainConfig(steps=steps, log_every=self.every, snapshot_every=self.every, seed=self.seed)
        about = "Trained by PyTorch Lightning: optimiser and schedule are the module's own."
        settings = Preset("lightning", self.name, about, model.config, self.task.config, train)
        self._run = run = OutsideRun(self.store, settings, self.owner)
        self.rows, self.losses, self.step = [], [], 0
        run.start()
        self._keep_snapshot(run, model)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self._run is not None and (trainer.global_step + 1) % self.every == 0:
            gradients = [p.grad.flatten() for p in transformer_in(pl_module).parameters() if p.grad is not None]
            self.gradient_norm = float(torch.cat(gradients).norm()) if gradients else 0.0
            self.rate = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if (run := self._run) is None:
            return
        if isinstance(loss, Tensor):
            self.losses.append(float(loss))
        if trainer.global_step != self.step and trainer.global_step % self.every == 0:
            self.step = trainer.global_step
            self._report(run, trainer, transformer_in(pl_module))
            self._obey(run, trainer)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if (run := self._run) is None:
            return
        model = transformer_in(pl_module)
        if trainer.global_step != self.step:
            self.step = trainer.global_step
            self._report(run, trainer, model)
        card = {
            "preset": "lightning",
            "title": self.name,
            "about": self.store.entry(run.id).about,
            "seed": self.seed,
            "step": self.step,
            "device": pl_module.device.type,
            "torch": torch.__version__,
            "seconds": round(run.seconds, 2),
            "curve": fitting(self.rows),
        }
        save(Checkpoint(model, self.task, card), run.folder)
        figures = put_figures_on_card(run.folder, 2_000)
        self._leave(run, "finished", figures=json.dumps(figures))

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        if (run := self._run) is not None:
            self._leave(run, "failed", message=f"Lightning's loop ended with {type(exception).__name__}.")

    def _report(self, run: OutsideRun, trainer: lightning.Trainer, model: Transformer) -> None:
        """Write a snapshot and a row of metrics."""
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        held_out = moved(self.held_out, device)
        with torch.no_grad():
            found = score(held_out.logits(model), held_out)
        inputs = [tokens.to(device) for tokens in (self.probe.stream, self.probe.target) if tokens is not None]
        scores = self.task.head_scores(record(model, *inputs, keep=["*.pattern"]), self.probe)
        model.train(was_training)
        steps = int(trainer.estimated_stepping_batches)
        seconds = run.seconds
        loss = sum(self.losses) / max(1, len(self.losses))
        row = Progress(
            step=self.step,
            steps=steps,
            loss=loss,
            held_out=found,
            learning_rate=self.rate,
            gradient_norm=self.gradient_norm,
            seconds=seconds,
            tokens_per_second=0.0,  # not counted: the batches are the module's own
            scores=scores,
            done=self.step >= steps,
        ).row()
        before = self.rows[-1] if self.rows else {"step": 0, "seconds": 0.0}
        speed = (self.step - before["step"]) / max(1e-9, seconds - before["seconds"])
        live = {name: row[name] for name in ("loss", "gradient_norm", "learning_rate")} | {"steps_per_second": speed}
        self.rows, self.losses = [*self.rows, row], []
        self._keep_snapshot(run, model)
        run.write(row, live)

    def _keep_snapshot(self, run: OutsideRun, model: Transformer) -> None:
        """Write the weights of this step. If the quota is exceeded, the run shows a message and training continues."""
        try:
            room = sum(parameter.nbytes for parameter in model.parameters())
            self.room.check(room, f"A snapshot of step {self.step:,}")
        except QuotaExceededError as error:
            self.store.change(run.id, message=str(error))
            return
        save(Checkpoint(model, self.task), snapshot_file(run.folder, self.step))
        self.room.wrote(room)

    def _obey(self, run: OutsideRun, trainer: lightning.Trainer) -> None:
        """Obey the commands of the app: only stop is supported."""
        commands = run.take_commands()
        if commands - {"stop"}:
            self.store.change(run.id, message="A run of Lightning's can only be watched and stopped from here.")
        if "stop" in commands:
            trainer.should_stop = True

    def _leave(self, run: OutsideRun, state: str, **values: Any) -> None:
        run.leave(state, **values)
        self._run = None


def transformer_in(module: torch.nn.Module) -> Transformer:
    """The one transformer of a module. Raises `ConfigError` if there is not exactly one."""
    found = [part for part in module.modules() if isinstance(part, Transformer)]
    if len(found) != 1:
        raise ConfigError(
            f"The module must hold exactly one xformer.Transformer, got {len(found)}; "
            "for example self.model = Transformer(config)."
        )
    return found[0]


def moved(value: Any, device: torch.device) -> Any:
    """A batch, layout or tensor on a device; other values unchanged."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: moved(getattr(value, field.name), device) for field in fields(value)})
    return value


def main(steps: int = 700, folder: str | None = None) -> LitTransformer:
    """Train `reverse-small` with Lightning's loop and keep what the app shows."""
    prepare_process()
    chosen = preset("reverse-small")
    module = LitTransformer(chosen)
    trainer = lightning.Trainer(
        max_steps=steps,
        gradient_clip_val=chosen.train.clip_norm,
        callbacks=[AttentionSnapshots(module.task, folder=folder, name="Reverse, by Lightning")],
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
    )
    trainer.fit(module)
    return module


if __name__ == "__main__":
    main()
