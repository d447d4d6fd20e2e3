"""How good a trained model is on examples that it has never seen."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xformer.model import Transformer
from xformer.tasks import Score, Task, score

BATCH = 500


@torch.no_grad()
def evaluate(model: Transformer, task: Task, *, samples: int, seed: int) -> Score:
    """Score `samples` fresh examples drawn from `seed` (each as often as its length comes up)."""
    device = model.embedding.token.device
    was_training, parts = model.training, []
    model.eval()
    for step, n in enumerate(_batches(samples)):
        batch = task.sample(n, seed=seed, step=step, purpose="test", device=device)
        parts.append(score(batch.logits(model), batch))
    model.train(was_training)
    return average(parts)


def average(parts: list[Score]) -> Score:
    """Scores of several batches as one, each weighted by its number of examples."""
    total = sum(part.samples for part in parts)

    def mean(name: str) -> float:
        return sum(getattr(part, name) * part.samples for part in parts) / total

    return Score(
        loss=mean("loss"), token_accuracy=mean("token_accuracy"), exact_match=mean("exact_match"), samples=total
    )


def _batches(samples: int) -> Iterator[int]:
    while samples > 0:
        yield min(BATCH, samples)
        samples -= BATCH
