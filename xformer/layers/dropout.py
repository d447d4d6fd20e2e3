"""Dropout whose randomness belongs to the caller (Srivastava et al. 2014).

    dropout(x) = x · keep / (1 − p)        keep ~ Bernoulli(1 − p)

`nn.Dropout` draws from the process-wide generator; here the generator is passed in the call, so that a training step is a
function of (weights, seed, step) and a resumed run repeats the undisturbed one to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.config import DropoutSite, ModelConfig


@dataclass(frozen=True)
class Dropout:
    """The dropout of one forward pass: a rate, the places where it applies, and where its randomness comes from."""

    rate: float = 0.0
    sites: tuple[DropoutSite, ...] = ()
    generator: torch.Generator | None = None

    @classmethod
    def of(cls, config: ModelConfig, generator: torch.Generator | None = None) -> Dropout:
        """What a configuration prescribes for training."""
        return cls(config.dropout, config.dropout_sites, generator) if config.dropout else NO_DROPOUT

    def applies(self, site: DropoutSite) -> bool:
        return self.rate > 0 and site in self.sites

    def __call__(self, site: DropoutSite, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Zero a random share of `x` and scale up the rest, where this place has dropout."""
        if not self.applies(site):
            return x
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)


NO_DROPOUT = Dropout()
