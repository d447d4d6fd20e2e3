"""Loss, token accuracy and exact match equal those of loops over Python lists."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.training.tiny import ARCHITECTURES, tiny_task
from xformer.tasks import Batch, score
from xformer.tasks.batch import IGNORED, right_examples

VOCABULARY = 11


def slow_score(logits: Tensor, batch: Batch) -> tuple[float, float, float, int]:
    """Compute the three scores cell by cell, as the docstring of `xformer.tasks.batch` defines them."""
    losses: list[float] = []
    rights: list[bool] = []
    examples: dict[tuple[int, int], bool] = {}
    for row, labels in enumerate(batch.labels.tolist()):
        for cell, label in enumerate(labels):
            segment = int(batch.output_segments[row, cell])
            if segment:
                examples.setdefault((row, segment), True)
            if label == IGNORED:
                continue
            scores = logits[row, cell].tolist()
            top = max(scores)
            losses.append(math.log(sum(math.exp(s - top) for s in scores)) + top - scores[label])
            right = scores.index(top) == label
            rights.append(right)
            examples[row, segment] &= right
    exact = sum(examples.values()) / len(examples)
    return sum(losses) / len(losses), sum(rights) / len(rights), exact, len(examples)


def imperfect(batch: Batch, seed: int) -> Tensor:
    """Return random logits biased towards the right token, so that about half of the examples are right."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(*batch.labels.shape, VOCABULARY, generator=draw)  # [batch, out, vocab]
    right = torch.nn.functional.one_hot(batch.labels.clamp(min=0), VOCABULARY)
    return logits + 3.0 * right


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_equal_those_of_a_loop(float64: None, architecture: str, packed: bool) -> None:
    batch = tiny_task(architecture).sample(60, seed=3, packed=packed)
    logits = imperfect(batch, seed=1)
    result = score(logits, batch)
    loss, accuracy, exact, samples = slow_score(logits, batch)
    assert samples == result.samples == 60
    assert 0.2 < exact < 0.8  # otherwise the comparison would prove little
    assert result.exact_match == pytest.approx(exact, abs=1e-15)
    assert result.token_accuracy == pytest.approx(accuracy, abs=1e-15)
    assert result.loss == pytest.approx(loss, rel=1e-12)  # fewer than 600 terms, each accurate to about 1e-15


def test_one_wrong_cell_makes_one_example_of_a_packed_row_wrong() -> None:
    batch = tiny_task().sample(20, seed=3, packed=True)
    predicted = batch.labels.clone()
    assert right_examples(predicted, batch).all()
    segments = batch.output_segments[4]
    cell = int((segments == 2).nonzero()[0])  # the first cell of the second example of row 4: example 9
    predicted[4, cell] = 1 + predicted[4, cell] % 7
    assert right_examples(predicted, batch).logical_not().nonzero().flatten().tolist() == [9]
