"""Dropout with an explicit random generator (Srivastava et al. 2014).

    dropout(x) = x · keep / (1 − p)        keep ~ Bernoulli(1 − p)

`nn.Dropout` uses the global generator. Here the caller passes one, so that a training step is a function of (weights, seed,
step) and a resumed run equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.config import DropoutSite, ModelConfig


@dataclass(frozen=True)
class Dropout:
    """The dropout of one forward pass: the rate, the sites where it applies, and the source of randomness."""

    rate: float = 0.0
    sites: tuple[DropoutSite, ...] = ()
    generator: torch.Generator | None = None

    @classmethod
    def of(cls, config: ModelConfig, generator: torch.Generator | None = None) -> Dropout:
        """Return the dropout of a configuration in training."""
        return cls(config.dropout, config.dropout_sites, generator) if config.dropout else NO_DROPOUT

    def applies(self, site: DropoutSite) -> bool:
        return self.rate > 0 and site in self.sites

    def __call__(self, site: DropoutSite, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Zero random elements of `x` and scale up the rest, if dropout applies at this site."""
        if not self.applies(site):
            return x
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)


NO_DROPOUT = Dropout()
