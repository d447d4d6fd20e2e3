"""The figures of a finished run: scored on sequences of another seed than its own, and written down with its weights."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xformer.checkpoints import Checkpoint, load, save
from xformer.errors import InputError
from xformer.training.evaluate import Watch, evaluate, evaluate_edge_cases


def measure(
    checkpoint: Checkpoint, samples: int, seed: int, watch: Watch | None = None, *, edge_cases: bool = False
) -> dict[str, Any]:
    """How good it is on `samples` unseen examples, and if asked on the edge cases of its task, where it has any.

    The figures say of how many examples they are: fewer where `watch` has ended it (see `evaluate`).

    Raises `InputError` where the checkpoint names no task.
    """
    if checkpoint.task is None:
        raise InputError("The checkpoint names no task, so there is nothing to score it on.")
    model, task = checkpoint.model, checkpoint.task
    figures = asdict(evaluate(model, task, samples=samples, seed=seed, watch=watch)) | {"seed": seed}
    edges = evaluate_edge_cases(model, task) if edge_cases else None
    return figures if edges is None else figures | {"edge_cases": asdict(edges)}


def put_figures_on_card(
    folder: str | Path, samples: int, watch: Watch | None = None, *, edge_cases: bool = False
) -> dict[str, Any]:
    """Measure the checkpoint in `folder` from a seed that is not its own, add the figures to its card, and return them.

    Raises `InputError` where its card does not say from which seed it was trained.
    """
    checkpoint = load(folder)
    seed = checkpoint.card.get("seed")
    if type(seed) is not int:
        raise InputError(
            f"The card of {folder} does not say which seed it was trained from, so none is known to be another."
        )
    figures = measure(checkpoint, samples, (seed + 1) % 2**63, watch, edge_cases=edge_cases)
    save(replace(checkpoint, card=checkpoint.card | {"figures": figures}), folder)
    return figures
