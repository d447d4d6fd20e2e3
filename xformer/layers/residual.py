"""The residual connection around a sublayer f, and where its normalisation stands.

post-norm   Norm(x + f(x))        the paper (Vaswani et al. 2017, §5.4: dropout on f before the sum)
pre-norm    x + f(Norm(x))        GPT-2 and after (Xiong et al. 2020, arXiv:2002.04745)
no norm     x + f(x)
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.norm import Norm

Sublayer = Callable[[Tensor], Tensor]
Vectors = Float[Tensor, "batch pos d_model"]


class Residual(nn.Module):
    """What the three have in common: a sum, and a norm where there is one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.norm != "none":
            self.norm = Norm(config)

    def add(self, x: Vectors, result: Vectors) -> Vectors:
        """The stream with a sublayer's result in it."""
        return x + result


class PostNorm(Residual):
    """Norm(x + f(x))."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return self.norm(self.add(x, f(x)))


class PreNorm(Residual):
    """x + f(Norm(x))."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return self.add(x, f(self.norm(x)))


class NoNorm(Residual):
    """x + f(x)."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return self.add(x, f(x))


RESIDUALS = {"post": PostNorm, "pre": PreNorm, "none": NoNorm}
