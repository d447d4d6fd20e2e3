"""One training step of many models of one shape at once: their parameters lie side by side, and each product is a batched one.

    Wᵐ for all models m as one tensor [model, out, in],   yᵐ = xᵐ Wᵐᵀ   as one batched product

A small model keeps no processor busy: most of a step goes into starting operations. Stacked, each is started once for all.
Every model keeps its own data, seed, learning rate, decay and clipping: what one does changes nothing in another.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.tasks.task import CHUNK
from xformer.training.loop import Run
from xformer.training.optimiser import Piece, update_alike
from xformer.training.schedule import learning_rate
from xformer.training.stacked_batch import StackedBatch
from xformer.training.stacked_model import skeleton
from xformer.training.stacked_part import StackedPart
from xformer.training.stacked_replay import StackedReplay


class StackedStep:
    """The models of some trainings, whose parameters and gradients from now on are rows of one tensor each.

    They have one shape and one task; `check_alike` says so in words. A training that leaves gets storage of its own back.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.skeleton = skeleton(self.runs[0].preset.model, self.runs[0].device)
        self._stack()

    def leave(self, run: Run) -> None:
        """Go on without this one."""
        self.runs.remove(run)
        run.optimiser.live_in(run.optimiser.flat.clone(), run.optimiser.gradient.clone())
        if self.runs:
            self._stack()

    def train_step(self) -> list[tuple[float, float, int]]:
        """One update of every model. Returns the loss, gradient norm and number of tokens of each, for `Run.took_step`."""
        clock = time.perf_counter()
        batch = self.batch()
        losses, norms = self._find(batch)
        for run in self.runs:
            run.updating = True
        alike: dict[tuple[float, ...], list[Piece]] = defaultdict(list)
        for run in self.runs:
            lr = learning_rate(run.config, run.step + 1)
            for piece in run.optimiser.pieces:
                alike[lr, *piece.recipe].append(piece)
        for (lr, *_), pieces in alike.items():
            update_alike(pieces, lr)
        figures = list(zip(losses.tolist(), norms.tolist(), batch.n_tokens, strict=True))
        share = (time.perf_counter() - clock) / len(self.runs)
        for run in self.runs:
            run.seconds += share
        return figures

    def batch(self) -> StackedBatch:
        """The batches of all models at their next step, as one."""
        if not self.ahead:
            pad = self.runs[0].task.vocabulary.special.pad
            if any(run.config.random_positions for run in self.runs):  # they are drawn for each step by itself
                return StackedBatch.of([run.batch(run.step) for run in self.runs], pad)
            n = min(CHUNK - run.step % CHUNK for run in self.runs)
            self.ahead = StackedBatch.of([run.batches_from(run.step, n) for run in self.runs], pad).steps(n)[::-1]
        return self.ahead.pop()

    def _find(self, batch: StackedBatch) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        """Leave each model's gradient in its row, clipped; returns the losses, and the norms before."""
        if self.gradient.device.type != "cpu":
            return self.whole.find(batch)
        if batch.shape not in self.replays:
            self.replays[batch.shape] = StackedReplay(self.whole, batch, self.memory)
            self.memory = self.replays[batch.shape].memory
        return self.replays[batch.shape].find(batch)

    def _stack(self) -> None:
        """Put the models' parameters side by side, [model, n], and have each go on there."""
        self.flat = torch.stack([run.optimiser.flat for run in self.runs])  # [model, n]
        self.gradient = torch.zeros_like(self.flat)
        self.ahead: list[StackedBatch] = []
        """What the next steps read, the last of them first: put together once for many steps."""
        self.whole = StackedPart(self.runs, self.skeleton, self.flat, self.gradient)
        self.memory: torch.UntypedStorage | None = None
        self.replays: dict[object, StackedReplay] = {}
        """What finds the gradients on a CPU, by the shape of the batch."""
        for run, row, gradient in zip(self.runs, self.flat, self.gradient, strict=True):
            run.optimiser.live_in(row, gradient)
