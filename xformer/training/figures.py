"""The figures of a finished run: scored on sequences of another seed than its own, and written down with its weights."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xformer.checkpoints import load, save
from xformer.training.evaluate import Watch, evaluate


def put_figures_on_card(folder: str | Path, samples: int, watch: Watch | None = None) -> dict[str, Any]:
    """Score the checkpoint in `folder` on `samples` unseen examples, add the figures to its card, and return them.

    They say of how many examples they are: fewer where `watch` has ended it (see `evaluate`).
    """
    checkpoint = load(folder)
    assert checkpoint.task is not None
    seed = checkpoint.card["seed"] + 1
    score = evaluate(checkpoint.model, checkpoint.task, samples=samples, seed=seed, watch=watch)
    figures = asdict(score) | {"seed": seed}
    save(replace(checkpoint, card=checkpoint.card | {"figures": figures}), folder)
    return figures
