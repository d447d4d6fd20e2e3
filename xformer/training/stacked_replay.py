"""The losses and gradients of a stack of models, found by the operations that were recorded once for batches of this shape.

Where the intermediate results of all models are larger than a processor's caches, it is a few models after the other.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.training.recording import Recording
from xformer.training.replay import Replay
from xformer.training.stacked_batch import StackedBatch
from xformer.training.stacked_part import StackedPart

AT_ONCE = 1 << 25
"""Bytes of intermediate results beyond which fewer models at a time are faster."""


class StackedReplay:
    """What `StackedPart.find` does, for a whole stack; it has storage of its own for the batches."""

    def __init__(self, whole: StackedPart, batch: StackedBatch, memory: torch.UntypedStorage | None = None) -> None:
        """`memory` is that of another shape, which is not repeated meanwhile: where it is large enough it is used too."""
        self.batch = batch.map(torch.clone)

        def recorded(some: slice) -> Recording:
            part = whole[some]
            read = self.batch.map(lambda rows: rows[some])
            return Recording(lambda: part.find(read))

        _, size_of_one = recorded(slice(0, 1)).layout()
        n_parts = min(len(whole), -(-len(whole) * size_of_one // AT_ONCE))
        ends = [len(whole) * number // n_parts for number in range(n_parts + 1)]
        self.replays: list[Replay] = []
        for first, after in pairwise(ends):
            self.replays.append(Replay(recorded(slice(first, after)), memory))
            memory = self.replays[-1].memory
        self.memory = memory

    def find(self, batch: StackedBatch) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        """Leave each model's gradient in its row; returns the losses, and the norms before clipping."""
        torch._foreach_copy_(self.batch.tensors(), batch.tensors())  # pyright: ignore[reportPrivateImportUsage]
        for replay in self.replays:
            replay()
        losses, norms = zip(*(replay.results for replay in self.replays), strict=True)
        return torch.cat(losses), torch.cat(norms)
