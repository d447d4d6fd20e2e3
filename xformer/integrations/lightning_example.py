"""`python -m xformer.integrations.lightning_example`: Lightning trains a reverser while the app shows it as a run."""

from __future__ import annotations

import lightning

from xformer.integrations.lightning import AttentionSnapshots, LitTransformer
from xformer.presets import preset
from xformer.training.loop import prepare_process


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
