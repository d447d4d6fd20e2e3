"""Batches of examples, and scores over their labelled cells.

    loss            mean of −log p(right token)
    token accuracy  fraction of labelled cells whose likeliest token is right
    exact match     fraction of examples in which all labelled cells are right

If no output sees later tokens, exact match under teacher forcing equals exact match of greedy decoding, because both agree up
to the first mistake. For other models `xformer.training.evaluate` decodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.layers.masks import SequencePacking
from xformer.model import Transformer

IGNORED = -100
"""The label of cells without a right answer (padding, prompts); loss and scores skip them."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples in rows, several per row if packed. Only an encoder-decoder has a `target`."""

    tokens: Int[Tensor, "batch pos"]
    layout: SequencePacking
    labels: Int[Tensor, "batch out"]
    """The right token at each output, or `IGNORED`."""
    target: Int[Tensor, "batch out"] | None = None
    target_layout: SequencePacking | None = None

    @property
    def output_segments(self) -> Int[Tensor, "batch out"]:
        """The example within its row, 1, 2, …, to which each output belongs; 0 is padding."""
        layout = self.layout if self.target_layout is None else self.target_layout
        return torch.ones_like(self.labels) if layout.segments is None else layout.segments

    @property
    def valid(self) -> Bool[Tensor, "batch pos"] | None:
        """True where `tokens` are not padding; None if there is no padding."""
        return None if self.layout.segments is None else self.layout.segments > 0

    def rows(self, start: int, stop: int) -> Batch:
        """Return a slice of the rows, as views."""
        return self.map(lambda cells: cells[start:stop])

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a function applied to every tensor, in the order of `tensors`."""

        def changed(layout: SequencePacking) -> SequencePacking:
            positions, mirrored = change(layout.positions), change(layout.mirrored)
            segments = None if layout.segments is None else change(layout.segments)
            return SequencePacking(positions, mirrored, segments, layout.padded)

        batch = Batch(change(self.tokens), changed(self.layout), change(self.labels))
        target = None if self.target is None else change(self.target)
        return replace(batch, target=target, target_layout=self.target_layout and changed(self.target_layout))

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the batch."""
        found: list[Tensor] = []
        self.map(lambda cells: found.append(cells) or cells)
        return found

    def logits(
        self, model: Transformer, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch out vocab"]:
        """Return the model's logits on the batch."""
        layouts = {"layout": self.layout, "target_layout": self.target_layout}
        return model(self.tokens, self.target, generator=generator, **layouts)


@dataclass(frozen=True)
class Score:
    """Loss, token accuracy, exact match, and the number of examples."""

    loss: float
    token_accuracy: float
    exact_match: float
    samples: int

    @property
    def bits(self) -> float:
        """The loss in bits; for text, bits per character."""
        return self.loss / math.log(2)


def cross_entropy(logits: Float[Tensor, "batch out vocab"], labels: Int[Tensor, "batch out"]) -> Float[Tensor, ""]:
    """Return the mean −log p(right token), in nats, over the labelled cells."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def right_examples(predicted: Int[Tensor, "batch out"], batch: Batch) -> Bool[Tensor, " example"]:
    """Return, for each example of the batch, whether all its labelled cells are predicted correctly."""
    segments = batch.output_segments  # [batch, out]
    n_segments = int(segments.max())
    wrong = ((predicted != batch.labels) & (batch.labels != IGNORED)).long()
    counts = wrong.new_zeros(len(segments), n_segments + 1).scatter_add_(1, segments, wrong)
    exists = wrong.new_zeros(len(segments), n_segments + 1).scatter_(1, segments, 1).bool()
    return (counts == 0)[:, 1:][exists[:, 1:]]


@torch.no_grad()
def score(logits: Float[Tensor, "batch out vocab"], batch: Batch) -> Score:
    """Score the logits of one batch."""
    labelled = batch.labels != IGNORED
    predicted = logits.argmax(dim=-1)
    right = right_examples(predicted, batch)
    return Score(
        loss=cross_entropy(logits, batch.labels).item(),
        token_accuracy=((predicted == batch.labels) & labelled).sum().item() / max(1, int(labelled.sum())),
        exact_match=int(right.sum()) / len(right),
        samples=len(right),
    )
