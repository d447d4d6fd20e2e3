"""Our models trained by PyTorch Lightning, and watched in the app while they are: `pip install .[lightning]`.

module = LitTransformer(preset("reverse-small"))
trainer = lightning.Trainer(max_steps=700, callbacks=[AttentionSnapshots(module.task)])
trainer.fit(module)

`AttentionSnapshots` works with any LightningModule that holds one of our models; `LitTransformer` is the shortest of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from xformer.integrations.attention_snapshots import AttentionSnapshots, moved
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Batch, Task, score
from xformer.tasks.batch import cross_entropy
from xformer.tasks.framing import Purpose, generator
from xformer.tasks.task import CHUNK
from xformer.training.recipe import learning_rate

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
        self.model = Transformer(preset.model, generator(preset.train.seed, "init", 0, "cpu"))

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
