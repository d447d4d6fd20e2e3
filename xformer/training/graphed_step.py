"""A training step that a GPU is given whole: recorded once as a CUDA graph, then repeated at the cost of one launch.

A step of a small model is hundreds of operations of a few microseconds, and starting one takes the host as long. The first
steps are run as they are, so that libraries set themselves up; then one is recorded, repeated once beside the step itself to
see that both come to the same, and from there on only repeated. What cannot be recorded is trained step by step, and the log
says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xformer.training.static_step import StaticStep, UnfitError
from xformer.training.steps import Training

WARM_UP = 3
"""Steps before one is recorded; PyTorch's documentation takes as many."""
TOLERANCE = 0.01
"""By how much of an update the recorded step's may differ from the step's own: sums on a GPU are not made in one order."""


class GraphedStep:
    """The step of one training on a GPU."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self.taken = 0
        self.graph: Any = None
        self.static: StaticStep | None = None
        try:
            self.static = StaticStep(run)
            self.stream: Any = side_stream(run.device)
        except (UnfitError, RuntimeError, AssertionError) as error:  # torch asserts that it was compiled for GPUs
            self._give_up(error)

    def take(self) -> None:
        """One update. Raises `TrainingError` when the loss or the gradient is not a number."""
        static = self.static
        if static is None:
            Training.train_step(self.run)
            return
        try:
            n_tokens = static.prepare()
            if self.graph is None and self.taken >= WARM_UP:
                self.graph = record(static.program, self.run.device, self.stream)
                if not self._is_faithful(static):
                    raise UnfitError("the recorded step comes to something else")
        except (UnfitError, RuntimeError) as error:  # nothing of this step has been done
            self._give_up(error)
            Training.train_step(self.run)
            return
        self.run.updating = True
        if self.graph is None:
            aside(static.program, self.run.device, self.stream)
        else:
            self.graph.replay()
        self.taken += 1
        static.finish(n_tokens)

    def _give_up(self, error: Exception) -> None:
        logging.getLogger(__name__).warning(
            "The training goes on without a CUDA graph: %s", " ".join(str(error).split())
        )
        self.static = self.graph = None

    def _is_faithful(self, static: StaticStep) -> bool:
        """Whether the graph does what the step does, from where the training stands, which is left as it was."""
        optimiser = self.run.optimiser
        storage = [optimiser.flat, *(value for piece in optimiser.pieces for value in piece.moments().values())]
        before = [one.detach().clone() for one in storage]

        def after(step: Callable[[], object]) -> list[Tensor]:
            try:
                step()
                return [one.detach().clone() for one in (*storage, static.figures)]
            finally:
                for one, earlier in zip(storage, before, strict=True):
                    one.copy_(earlier)

        graphed = after(self.graph.replay)
        own = after(lambda: aside(static.program, self.run.device, self.stream))
        was = [*before, torch.zeros_like(static.figures)]
        return all(
            bool((one - other).norm() <= TOLERANCE * (other - earlier).norm())
            for one, other, earlier in zip(graphed, own, was, strict=True)
        )


def side_stream(device: torch.device) -> Any:
    """A stream of its own: what is recorded must not touch the one that all others use."""
    return torch.cuda.Stream(device=device)


def aside(program: Callable[[], object], device: torch.device, stream: Any) -> None:
    """Run something on the side stream, after all that came before and before all that comes."""
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            program()
        torch.cuda.current_stream().wait_stream(stream)


def record(program: Callable[[], object], device: torch.device, stream: Any) -> Any:
    """The operations of a program as a CUDA graph, which has a `replay`; recording does none of them. Raises `RuntimeError`."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            program()
        torch.cuda.synchronize()
    return graph
