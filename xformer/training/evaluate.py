"""How good a trained model is on examples that it has never seen."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xformer.model import Transformer
from xformer.tasks import Score, Task, score
from xformer.tasks.batch import IGNORED

BATCH = 500


@torch.no_grad()
def evaluate(model: Transformer, task: Task, *, samples: int, seed: int) -> Score:
    """Score `samples` fresh examples drawn from `seed` (each as often as its length comes up).

    Where there are fewer that training never showed, each of them is scored once.
    """
    samples = min(samples, task.rule.unseen or samples)
    device = model.device
    was_training, parts, cells = model.training, [], []
    model.eval()
    for step, n in enumerate(_batches(samples)):
        batch = task.sample(n, seed=seed, step=step, purpose="test", device=device)
        parts.append(score(batch.logits(model), batch))
        cells.append(int((batch.labels != IGNORED).sum()))
    model.train(was_training)
    return average(parts, cells)


def average(parts: list[Score], cells: list[int]) -> Score:
    """Scores of several batches as one: what is a mean over cells is weighted by their labelled cells, the rest by examples."""
    samples = [part.samples for part in parts]

    def mean(values: list[float], weights: list[int]) -> float:
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

    return Score(
        loss=mean([part.loss for part in parts], cells),
        token_accuracy=mean([part.token_accuracy for part in parts], cells),
        exact_match=mean([part.exact_match for part in parts], samples),
        samples=sum(samples),
    )


def _batches(samples: int) -> Iterator[int]:
    while samples > 0:
        yield min(BATCH, samples)
        samples -= BATCH
