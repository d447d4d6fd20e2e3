"""How fresh weights are drawn, from a generator that belongs to the caller.

    Xavier-uniform   W ~ U(−b, b),  b = gain · √(6 / (fan_in + fan_out))      (Glorot & Bengio 2010), q, k and v each on its own
    normal           W ~ N(0, std²)                                           (GPT-2)
Biases start at 0, norms at 1 and 0, embeddings at N(0, embed_std²).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.embedding import PositionTables
from xformer.layers.feed_forward import Norm


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, generator: torch.Generator | None = None) -> None:
    """Fill every parameter of `model` in place. Those on the meta device have a shape and no numbers, and stay so."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:  # drawing there imports torch's compiler: seconds for nothing
                continue
            if isinstance(module, Norm):
                parameter.fill_(module.component.initial()[name])
            elif parameter.dim() == 1:
                parameter.zero_()
            elif name == "token" or isinstance(module, PositionTables):
                parameter.normal_(0.0, config.embed_std, generator=generator)
            elif isinstance(module, Attention) and name == "weight_in":
                for matrix in parameter.split(module.rows):
                    _draw(matrix, config, generator)
            else:
                _draw(parameter, config, generator)


def _draw(matrix: Tensor, config: ModelConfig, generator: torch.Generator | None) -> None:
    if config.init == "normal":
        matrix.normal_(0.0, config.init_scale, generator=generator)
    else:
        bound = config.init_scale * math.sqrt(6 / (matrix.shape[0] + matrix.shape[1]))
        matrix.uniform_(-bound, bound, generator=generator)
