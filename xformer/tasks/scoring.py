"""How well a model does: loss, token accuracy and exact match, over the cells that have a right answer and no others.

    loss            mean of −log p(right token)                    over labelled cells
    token accuracy  share of labelled cells whose likeliest token is right
    exact match     share of examples in which all of them are

Exact match under teacher forcing is exact match of greedy decoding, as long as no output sees what comes after it: if every
token is right given the right ones before it, greedy decoding says the same, and at its first mistake both are wrong. Where an
output does see it, `xformer.training.evaluate` finds out by decoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.tasks.batch import IGNORED, Batch


@dataclass(frozen=True)
class Score:
    """The three figures and the number of examples they were taken over."""

    loss: float
    token_accuracy: float
    exact_match: float
    samples: int

    @property
    def bits(self) -> float:
        """The loss in bits: of a text, bits per character. 1 bit is a choice between two, 0 is certainty."""
        return self.loss / math.log(2)


def cross_entropy(logits: Float[Tensor, "batch out vocab"], labels: Int[Tensor, "batch out"]) -> Float[Tensor, ""]:
    """Mean −log p(right token), in nats, over the labelled cells."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def right_examples(predicted: Int[Tensor, "batch out"], batch: Batch) -> Bool[Tensor, " example"]:
    """For each example of the batch, whether all its labelled cells are predicted right."""
    segments = batch.output_segments  # [batch, out]
    n_segments = int(segments.max())
    wrong = ((predicted != batch.labels) & (batch.labels != IGNORED)).long()
    counts = wrong.new_zeros(len(segments), n_segments + 1).scatter_add_(1, segments, wrong)
    exists = wrong.new_zeros(len(segments), n_segments + 1).scatter_(1, segments, 1).bool()
    return (counts == 0)[:, 1:][exists[:, 1:]]


@torch.no_grad()
def score(logits: Float[Tensor, "batch out vocab"], batch: Batch) -> Score:
    """The figures of one batch."""
    labelled = batch.labels != IGNORED
    predicted = logits.argmax(dim=-1)
    right = right_examples(predicted, batch)
    return Score(
        loss=cross_entropy(logits, batch.labels).item(),
        token_accuracy=((predicted == batch.labels) & labelled).sum().item() / max(1, int(labelled.sum())),
        exact_match=int(right.sum()) / len(right),
        samples=len(right),
    )
