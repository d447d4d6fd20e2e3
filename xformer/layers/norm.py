"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450), written out as its equation.

LayerNorm(x) = γ · (x − mean(x)) / √(var(x) + ε) + β        mean and (biased) variance over d_model
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def layer_norm(
    x: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, " d_model"],
    bias: Float[Tensor, " d_model"],
    eps: float,
) -> Float[Tensor, "*batch d_model"]:
    """The equation as it stands; `LayerNorm` runs PyTorch's fused kernel, and a test holds the two equal."""
    mean = x.mean(dim=-1, keepdim=True)  # [batch, pos, 1]
    variance = (x - mean).square().mean(dim=-1, keepdim=True)  # [batch, pos, 1]
    return weight * (x - mean) / torch.sqrt(variance + eps) + bias


class LayerNorm(nn.Module):
    """Normalises each vector to mean 0 and variance 1, then lets it learn a scale γ (`weight`) and shift β (`bias`)."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
