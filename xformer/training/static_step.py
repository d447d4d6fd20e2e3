"""A training step as one fixed sequence of operations on storage that stays where it is, in which nothing asks the host.

Which rows of the drawn batches it reads, and the learning rate, are numbers on the device. So a GPU can be given the whole step
at once and repeat it (`xformer.training.graphed_step`); on a CPU it is the same step, one operation after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.tasks import Batch
from xformer.tasks.task import CHUNK
from xformer.training.schedule import learning_rate
from xformer.training.steps import Training


class UnfitError(Exception):
    """This training has no such step; why, as half a sentence."""


class StaticStep:
    """The step of one training whose batches all have one shape. Raises `UnfitError` for others."""

    def __init__(self, run: Training) -> None:
        self.run = run
        if run.preset.model.dropout:
            raise UnfitError("its dropout is drawn anew for each step")
        if run.config.random_positions:
            raise UnfitError("its position numbers are drawn anew for each step")
        self.drawn: Batch | None = None
        """The batches of as many steps as are drawn at once, in storage of its own."""
        self.of_chunk = -1
        self.lr = torch.zeros((), device=run.device)
        self.place = torch.zeros((), dtype=torch.long, device=run.device)
        self.figures = torch.zeros(2, device=run.device)

    def take(self) -> None:
        """One update. Raises `TrainingError` when the loss or the gradient is not a number."""
        n_tokens = self.prepare()
        self.run.updating = True
        self.execute()
        self.finish(n_tokens)

    def prepare(self) -> int:
        """Put what this step needs where it reads it; returns how many cells it has."""
        run = self.run
        chunk, place = divmod(run.step, CHUNK)
        if chunk != self.of_chunk:
            self._take_in(run.batches_from(chunk * CHUNK, CHUNK))
            self.of_chunk = chunk
        self.place.fill_(place)
        self.lr.fill_(learning_rate(run.config, run.step + 1))
        assert self.drawn is not None
        return self.drawn.tokens.numel() // CHUNK

    def execute(self) -> None:
        """Run the step."""
        self.program()

    def program(self) -> Float[Tensor, "2"]:
        """The whole step: read its batch, forward, backward, clip, update. Loss and gradient norm go to `figures`."""
        assert self.drawn is not None
        found = self.run.find_gradient(self.drawn.map(self._rows()))
        self.run.optimiser.follow(self.lr)
        return self.figures.copy_(found)

    def finish(self, n_tokens: int) -> None:
        """Tell the training what came of it: here the host waits for the device."""
        loss, norm = self.figures.tolist()
        self.run.took_step(loss, norm, n_tokens)

    def _rows(self) -> Callable[[Tensor], Tensor]:
        """What picks out this step's own rows."""
        assert self.drawn is not None
        n_rows = len(self.drawn.tokens) // CHUNK
        rows = self.place * n_rows + torch.arange(n_rows, device=self.run.device)  # [row]
        return lambda cells: cells.index_select(0, rows)

    def _take_in(self, batches: Batch) -> None:
        if self.drawn is None:
            self.drawn = batches.map(lambda cells: cells.clone(memory_format=torch.contiguous_format))
            return
        for mine, new in zip(self.drawn.tensors(), batches.tensors(), strict=True):
            if mine.shape != new.shape:
                raise UnfitError(f"its batches change their shape, from {list(mine.shape)} to {list(new.shape)}")
            mine.copy_(new)
