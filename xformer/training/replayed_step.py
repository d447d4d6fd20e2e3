"""A training step on a processor whose loss and gradient are found without autograd: by the operations that it came to before.

What a step does depends on the shape of its batch alone, so it is written down once for each shape
(`xformer.training.recording`) and from then on repeated, on storage that stays where it is. The numbers are, bit for bit, those
of the usual step, which is taken first, and wherever nothing can be repeated: where dropout draws, or where a step is so much
work that nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.tasks import Batch
from xformer.training.recording import Recording, UnrepeatableError
from xformer.training.replay import Replay
from xformer.training.steps import Training

WARM_UP = 8
"""Usual steps on batches of a shape before one is recorded, which takes as long as twenty: short runs gain nothing by it."""
MOST_SHAPES = 8
"""Shapes that are recorded: where there are more, few come often."""
MOST_BYTES = 32 << 20
"""A step that makes more than this is recorded by nobody: its operations are so large that starting them is nothing, and while
it is recorded it would need all of that at once."""


class ReplayedStep:
    """The step of one training."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self.gradient = ReplayedGradient(run.find_gradient)
        self.storage = run.optimiser.flat

    def take(self) -> None:
        """One update. Raises `TrainingError` when the loss or the gradient is not a number."""
        run = self.run
        if self.storage is not run.optimiser.flat:  # it has left a stack of models
            self.gradient, self.storage = ReplayedGradient(run.find_gradient), run.optimiser.flat
        batch = run.batch(run.step)
        run.update(self.gradient.find(batch), batch)


class ReplayedGradient:
    """`find` leaves the gradient of a batch's loss in its place, and returns figures; what it reads beside the batch stays in
    the same storage."""

    def __init__(self, find: Callable[[Batch], Float[Tensor, " figure"]]) -> None:
        self.usual = find
        self.shapes: dict[object, _OfShape] = {}
        self.memory: torch.UntypedStorage | None = None

    def find(self, batch: Batch) -> Float[Tensor, " figure"]:
        """The same, repeated where batches of this shape have come before; then the figures count until the next call."""
        found = self.shapes.get(batch.shape)
        if found is None:
            if len(self.shapes) == MOST_SHAPES:
                return self.usual(batch)
            found = self.shapes[batch.shape] = _OfShape()
        if found.replay is None:
            found.taken += 1
            if found.taken != WARM_UP + 1 or not self._record(found, batch):
                return self.usual(batch)
        assert found.replay is not None
        torch._foreach_copy_(found.reads, batch.tensors())  # pyright: ignore[reportPrivateImportUsage]
        found.replay()
        [figures] = found.replay.results
        return figures

    def _record(self, found: _OfShape, batch: Batch) -> bool:
        """Whether it can be repeated from now on."""
        reads = batch.map(lambda cells: cells.clone(memory_format=torch.contiguous_format))
        try:
            recording = Recording(lambda: [self.usual(reads)], MOST_BYTES)
        except UnrepeatableError:
            return False
        found.reads, found.replay = reads.tensors(), Replay(recording, self.memory)
        self.memory = found.replay.memory
        return True


class _OfShape:
    """What is known of one shape of batch."""

    def __init__(self) -> None:
        self.taken = 0
        self.reads: list[Tensor] = []
        self.replay: Replay | None = None
