"""The normalisation of the residual stream: its parameters here, its equation in the registered component."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig


class Norm(nn.Module):
    """Normalises each vector and scales it by γ (`weight`); `bias` is the shift β, None where the component has none."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.component, self.eps = config.norm_component, config.norm_eps
        initial = self.component.initial()
        for name in ("weight", "bias"):
            value = nn.Parameter(torch.full((config.d_model,), initial[name])) if name in initial else None
            self.register_parameter(name, value)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.component.apply(x, self.weight, self.bias, self.eps)
