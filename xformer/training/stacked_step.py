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
from torch.func import functional_call, vmap

from xformer.layers.attention import Attention
from xformer.layers.masks import Mask
from xformer.model import Transformer
from xformer.tasks import Batch
from xformer.training.loop import Run
from xformer.training.optimiser import Piece, update_alike
from xformer.training.schedule import learning_rate
from xformer.training.stacked_batch import StackedBatch


class StackedAttention(Attention):
    """Attention whose kernel is written out, as PyTorch's fused one does not take an axis of models."""

    def kernel(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None
    ) -> Float[Tensor, "batch head query d_value"]:
        scores = self.score(q, k, v)  # [batch, head, query, key]
        if position_bias is not None:
            scores = scores + position_bias
        allowed = mask.allowed_or_empty
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        z = self.mix(scores.softmax(dim=-1), k, v)
        return z if mask.empty_rows is None else z.masked_fill(mask.empty_rows, 0.0)


class StackedStep:
    """The models of some trainings, whose parameters and gradients from now on are rows of one tensor each.

    They have one shape and one task; `check_alike` says so in words. A training that leaves gets storage of its own back.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        config = self.runs[0].preset.model
        self.skeleton = Transformer(config).to(self.runs[0].device).train()  # its own weights are never used
        for module in self.skeleton.modules():
            if type(module) is Attention:
                module.__class__ = StackedAttention  # the same parameters, another kernel
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
        batch = self.batch([run.batch(run.step) for run in self.runs])
        losses = batch.losses(self.logits(batch))
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        for gradient, one in zip(self.gradients, found, strict=True):
            gradient.copy_(one)
        for run in self.runs:
            run.updating = True
        norms = self._clip()
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

    def batch(self, batches: Sequence[Batch]) -> StackedBatch:
        """The batches of all models as one."""
        return StackedBatch.of(batches, self.runs[0].task.vocabulary.special.pad)

    def logits(self, batch: StackedBatch) -> Float[Tensor, "model batch out vocab"]:
        """What each model says to its own batch."""

        def of_one(parameters: dict[str, Tensor], cells: dict[str, Tensor]) -> Tensor:
            arguments, layouts = batch.arguments(cells)
            return functional_call(self.skeleton, parameters, arguments, layouts)

        return vmap(of_one)(self.parameters, dict(batch.cells))

    def _clip(self) -> Float[Tensor, " model"]:
        """Shorten each model's gradient to its own limit; returns how long they were."""
        norms = self.gradient.norm(dim=1)  # [model]
        limits = norms.new_tensor([run.config.clip_norm or float("inf") for run in self.runs])
        self.gradient.mul_((limits / (norms + 1e-6)).clamp(max=1.0)[:, None])
        return norms

    def _stack(self) -> None:
        """Put the models' parameters side by side, [model, n], and have each go on there."""
        self.flat = torch.stack([run.optimiser.flat for run in self.runs])  # [model, n]
        self.gradient = torch.zeros_like(self.flat)
        for run, row, gradient in zip(self.runs, self.flat, self.gradient, strict=True):
            run.optimiser.live_in(row, gradient)
        self.parameters: dict[str, Tensor] = {}
        self.gradients: list[Tensor] = []
        for name, p in self.runs[0].model.named_parameters():
            where = self.runs[0].optimiser.places[p]
            self.parameters[name] = self.flat[:, where].unflatten(1, p.shape).requires_grad_()  # [model, …]
            self.gradients.append(self.gradient[:, where].unflatten(1, p.shape))
