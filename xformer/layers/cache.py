"""The key/value cache: in step-by-step decoding a position's keys and values never change, so they are computed once.

Without it, decoding n tokens projects 1 + 2 + … + n positions; with it, n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class LayerCache:
    """Keys and values of one attention layer so far. That of cross-attention is filled once and only read."""

    k: Float[Tensor, "batch kv_head key d_head"] | None = None
    v: Float[Tensor, "batch kv_head key d_value"] | None = None
    is_cross: bool = False

    @property
    def kept_for_good(self) -> tuple[Tensor, Tensor] | None:
        """All keys and values that there will ever be, where they are here: those of cross-attention."""
        return None if not self.is_cross or self.k is None or self.v is None else (self.k, self.v)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the new positions and return all of them."""
        if self.k is None or self.v is None:
            self.k, self.v = k, v
        elif not self.is_cross:
            self.k, self.v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        return self.k, self.v


@dataclass
class Cache:
    """The caches of all layers during one decoding; it belongs to whoever decodes."""

    self_attention: list[LayerCache] = field(default_factory=list)
    cross_attention: list[LayerCache] = field(default_factory=list)
    length: int = 0

    @classmethod
    def empty(cls, n_layers: int) -> Cache:
        return cls(
            self_attention=[LayerCache() for _ in range(n_layers)],
            cross_attention=[LayerCache(is_cross=True) for _ in range(n_layers)],
        )
