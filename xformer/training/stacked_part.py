"""Some neighbours out of a stack of models, whose losses and gradients are found at one go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.model import Transformer
from xformer.training.loop import Run
from xformer.training.stacked_batch import StackedBatch
from xformer.training.stacked_model import take_over


class StackedPart:
    """The models whose rows of `flat` and `gradient` these are."""

    def __init__(
        self,
        runs: Sequence[Run],
        skeleton: Transformer,
        flat: Float[Tensor, "model n"],
        gradient: Float[Tensor, "model n"],
    ) -> None:
        self.runs, self.skeleton, self.flat, self.gradient = runs, skeleton, flat, gradient
        self.parameters: dict[str, Tensor] = {}
        self.gradients: list[Tensor] = []
        for name, p in runs[0].model.named_parameters():
            where = runs[0].optimiser.places[p]
            self.parameters[name] = flat[:, where].unflatten(1, p.shape).requires_grad_()  # [model, …]
            self.gradients.append(gradient[:, where].unflatten(1, p.shape))
        self.limits = gradient.new_tensor([run.config.clip_norm or float("inf") for run in runs])  # [model]

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, some: slice) -> StackedPart:
        return StackedPart(self.runs[some], self.skeleton, self.flat[some], self.gradient[some])

    def find(self, batch: StackedBatch) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        """Leave each model's gradient in its row, clipped to its own limit; returns its loss, and the norm before clipping."""
        take_over(self.skeleton, self.parameters)
        arguments, layouts = batch.arguments()
        losses = batch.losses(self.skeleton(*arguments, **layouts).unflatten(0, (len(self), -1)))
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        torch._foreach_copy_(self.gradients, found)  # pyright: ignore[reportPrivateImportUsage]
        norms = self.gradient.norm(dim=1)  # [model]
        self.gradient.mul_((self.limits / (norms + 1e-6)).clamp(max=1.0)[:, None])
        return losses, norms
