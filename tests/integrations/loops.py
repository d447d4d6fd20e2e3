"""What the tests of Lightning give to its loop: imported where they run and nowhere else, for Lightning takes seconds."""

from __future__ import annotations

from typing import Any

import lightning
import torch

from xformer.files import snapshot_steps
from xformer.integrations.lightning import AttentionSnapshots, LitTransformer
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training import jobs, liveness
from xformer.training.run_store import RunStore

__all__ = ["AttentionSnapshots", "DeepModule", "LitTransformer", "Watcher", "fit", "lightning"]


def fit(module: Any, preset: Preset, *callbacks: Any, steps: int | None = None) -> Any:
    trainer = lightning.Trainer(
        max_steps=steps or preset.train.steps,
        gradient_clip_val=preset.train.clip_norm,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module)
    return trainer


class DeepModule(lightning.LightningModule):
    """A user's module, with the model deep inside and its own data."""

    def __init__(self, preset: Preset, fail_at: int | None = None) -> None:
        super().__init__()
        self.task, self.fail_at = Task(preset.task), fail_at
        self.inner = torch.nn.ModuleDict({"net": Transformer(preset.model)})

    def training_step(self, batch: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        if index == self.fail_at:
            raise ZeroDivisionError("of their own")
        logits = self.inner["net"](batch)
        return {"loss": logits.square().mean()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader([torch.ones(5, dtype=torch.long)] * 64, batch_size=2)


class Watcher(lightning.Callback):
    """Looks at the run store while Lightning trains, as the app would."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.seen = store, []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        jobs.reconcile(self.store)
        [entry] = self.store.entries()
        held = liveness.is_held(self.store.folder_of(entry.id) / liveness.LOCK)
        self.seen.append((entry.state, held, snapshot_steps(self.store.folder_of(entry.id))[-1]))
