"""A norm as the linear map that it is once its divisor is frozen: what it makes of each part of what it reads.

    norm(x) = γ (x − μ(x)) / σ(x) + β          LayerNorm; RMSNorm has no μ and no β
    frozen(s) = γ (s − μ(s)) / σ(x)            so that Σ frozen(s) + β = norm(Σ s) for parts s with Σ s = x

What γ, β, μ and σ are is read off what the norm makes of a few vectors, so that it does not matter how a family writes it down.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.errors import UnavailableError

_FAR = 1e4
"""Beside numbers of this size the ε of a norm is nothing."""


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm at the divisors that it has for x [pos, d_model]."""

    scale: Float[Tensor, "pos d_model"]
    """γ / σ at each position."""
    shift: Float[Tensor, " d_model"]
    """β."""
    is_centred: bool

    @classmethod
    @torch.no_grad()
    def at(cls, norm: nn.Module, x: Float[Tensor, "pos d_model"]) -> FrozenNorm:
        """Raises `UnavailableError` for a norm of another form."""
        twin = copy.deepcopy(norm).double()
        x = x.double()

        def f(vector: Tensor) -> Tensor:
            return twin(vector.reshape(1, -1, x.shape[-1]))[0].double()  # [pos, d_model]

        given = f(x)
        shift = (given[0] + f(-x)[0]) / 2
        sign = torch.ones_like(x[0])
        sign[1::2] = -1
        centred = bool(torch.allclose(f(_FAR * (sign + 1)), f(_FAR * (sign - sign.mean())), atol=1e-4, rtol=1e-4))
        probe = (sign - sign.mean() if centred else sign) * _FAR
        gamma = (f(probe)[0] - shift) / probe * probe.square().mean().sqrt()
        inside = gamma * (x - x.mean(dim=-1, keepdim=True) if centred else x)  # [pos, d_model]
        per_sigma = (inside * (given - shift)).sum(-1, keepdim=True) / inside.square().sum(-1, keepdim=True)
        if not torch.allclose(inside * per_sigma + shift, given, rtol=1e-3, atol=1e-4 * float(given.abs().max())):
            raise UnavailableError(
                f"{type(norm).__name__} is no norm that divides by one number a position, so what it gives is no sum of parts."
            )
        return cls(gamma * per_sigma, shift, centred)

    def __call__(self, parts: Float[Tensor, "part pos d_model"]) -> Float[Tensor, "part pos d_model"]:
        """What it makes of parts of x, its shift left out."""
        return (parts - parts.mean(dim=-1, keepdim=True) if self.is_centred else parts) * self.scale.to(parts.dtype)
