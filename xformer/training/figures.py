"""The figures of a finished run: scored on sequences of another seed than its own, and written down with its weights."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xformer.checkpoints import load, save
from xformer.training.evaluate import evaluate


def put_figures_on_card(folder: str | Path, samples: int) -> dict[str, Any]:
    """Score the checkpoint in `folder` on `samples` unseen examples, add the figures to its card, and return them."""
    checkpoint = load(folder)
    assert checkpoint.task is not None
    seed = checkpoint.card["seed"] + 1
    figures = asdict(evaluate(checkpoint.model, checkpoint.task, samples=samples, seed=seed)) | {"seed": seed}
    save(replace(checkpoint, card=checkpoint.card | {"figures": figures}), folder)
    return figures
