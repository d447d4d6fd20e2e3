"""One batch of examples as a model takes it: tokens, what the answers are, and which cells belong to which example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.layers.layout import Layout
from xformer.model import Transformer

IGNORED = -100
"""The label of a cell that has no right answer (padding, a prompt): neither the loss nor a score counts it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples in rows, several a row when packed. `target` is there for an encoder-decoder only."""

    tokens: Int[Tensor, "batch pos"]
    layout: Layout
    labels: Int[Tensor, "batch out"]
    """The right token at each output, `IGNORED` where there is none."""
    target: Int[Tensor, "batch out"] | None = None
    target_layout: Layout | None = None

    @property
    def output_segments(self) -> Int[Tensor, "batch out"]:
        """Which example of its row an output belongs to: 1, 2, …; 0 is padding."""
        layout = self.layout if self.target_layout is None else self.target_layout
        return torch.ones_like(self.labels) if layout.segments is None else layout.segments

    @property
    def valid(self) -> Bool[Tensor, "batch pos"] | None:
        """Which of `tokens` are no padding; None where all are, as in images."""
        return None if self.layout.segments is None else self.layout.segments > 0

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the rows, as views."""
        return Batch(
            tokens=self.tokens[start:stop],
            layout=_rows(self.layout, start, stop),
            labels=self.labels[start:stop],
            target=None if self.target is None else self.target[start:stop],
            target_layout=None if self.target_layout is None else _rows(self.target_layout, start, stop),
        )

    def logits(
        self, model: Transformer, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch out vocab"]:
        """What the model says to this batch."""
        return model(
            self.tokens, self.target, layout=self.layout, target_layout=self.target_layout, generator=generator
        )


def _rows(layout: Layout, start: int, stop: int) -> Layout:
    return Layout(
        positions=layout.positions[start:stop],
        mirrored=layout.mirrored[start:stop],
        segments=None if layout.segments is None else layout.segments[start:stop],
        padded=layout.padded,
    )
