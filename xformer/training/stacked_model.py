"""A transformer whose parameters are those of many models: it reads the rows of all of them, one under the other.

It is a `Transformer` like any other, so nothing about a model is written twice; three kinds of its layers do their work in a
way that is faster where there are many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.cache import LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.feed_forward import FeedForward
from xformer.layers.masks import Mask
from xformer.layers.residual import Residual
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape
from xformer.training import stacked_functions
from xformer.training.stacked_weight import StackedWeight, stacked_of


class StackedAttention(Attention):
    """Attention whose kernel is written out: of many small products a batched one is faster than PyTorch's fused kernel."""

    def project(self, x: Tensor, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor, Tensor]:
        project = stacked_functions.Projections.apply
        if memory is None:
            q, k, v = project(x, *stacked_of(self.weight_in, self.bias_in), self.rows)
        else:
            n_q, bias = self.rows[0], self.bias_in
            of_q, of_kv = (None, None) if bias is None else (bias[:n_q], bias[n_q:])
            q = F.linear(x, self.weight_in[:n_q], of_q)
            k, v = project(memory, *stacked_of(self.weight_in[n_q:], of_kv), self.rows[1:])
        return self.split(q), self.split(k), self.split(v)

    def kernel(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None
    ) -> Float[Tensor, "batch head query d_value"]:
        added = (
            position_bias if mask.added is None else mask.added if position_bias is None else mask.added + position_bias
        )
        z = stacked_functions.Kernel.apply(q, k, v, added, 1 / math.sqrt(self.d_head))
        return z if mask.empty_rows is None else z.masked_fill(mask.empty_rows, 0.0)


class StackedFeedForward(FeedForward):
    """The feed-forward network with its ReLU, a few models at a time."""

    def forward(self, x: Tensor, *, tape: AnyTape = SILENT, dropout: Dropout = NO_DROPOUT) -> Tensor:
        if self.activation is not F.relu:
            return super().forward(x)
        parameters = (self.weight_in, self.bias_in, self.weight_out, self.bias_out)
        return stacked_functions.FeedForward.apply(x, *stacked_of(*parameters))


def skeleton(config: ModelConfig, device: torch.device) -> Transformer:
    """A model in training, whose own weights nobody uses: `take_over` gives it those of many."""
    model = Transformer(config).to(device).train()
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = StackedAttention
        elif type(module) is FeedForward:
            module.__class__ = StackedFeedForward
        elif isinstance(module, Residual):
            module.add = _add_in_place
    return model


def take_over(model: Transformer, stacked: Mapping[str, Float[Tensor, "model *shape"]]) -> None:
    """Have the layers compute with these from now on."""
    for name, weight in stacked.items():
        path, _, own = name.rpartition(".")
        parameters: dict[str, Tensor | None] = model.get_submodule(path)._parameters  # pyright: ignore[reportAssignmentType]
        parameters[own] = StackedWeight.of(weight)


def _add_in_place(x: Tensor, result: Tensor) -> Tensor:
    """What the layers above return is nobody else's."""
    return result.add_(x)
