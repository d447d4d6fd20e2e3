"""The weights that analysis uses: token embeddings, projections to the residual stream, and the unembedding.

    adapter.weights.token_embedding()              the vector of each token
    adapter.weights.projection("decoder.3.attn")   from a layer's heads (or neurons) to the stream
    adapter.weights.unembedding()                  from the stream to the logits

Weights that a model does not have, or that were not located, raise `UnavailableError`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.errors import UnavailableError


@dataclass(frozen=True, eq=False)
class Projection:
    """factor · norm(x W + b): from a layer's concatenated heads, or its neurons, to the stream."""

    weight: Float[Tensor, "inside d_model"]
    bias: Float[Tensor, " d_model"] | None = None
    norm: nn.Module | None = None
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Readout:
    """logits = cap · tanh(W norm(x) / cap) + b. The cap and the norm are optional."""

    matrix: Float[Tensor, "vocab d_model"]
    bias: Float[Tensor, " vocab"] | None = None
    norm: nn.Module | None = None
    softcap: float | None = None


class Weights(Protocol):
    """The weights of one model, read-only."""

    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab width"]:
        """The embedding of each token, for one stack."""
        ...

    def unembedding(self) -> Readout:
        """The map from the final stream state to the logits."""
        ...

    def projection(self, path: str) -> Projection:
        """The map from the inside of a layer to the stream."""
        ...

    def norm_after(self, path: str) -> nn.Module | None:
        """The norm on the stream after a layer's output is added (post-norm), or None."""
        ...

    def norm_before(self, path: str) -> nn.Module | None:
        """The norm between the stream and a layer's input (pre-norm), or None."""
        ...

    def last_norm(self, stack: str) -> nn.Module | None:
        """The norm after a stack's last block, or None."""
        ...

    def n_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        ...


@torch.no_grad()
def before_norm(
    norm: nn.Module, x: Float[Tensor, " d_model"], g: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, ""]]:
    """Pull a readout of a norm's output back to its input: g · norm(x) = g′ · x + c.

    σ is frozen at its value at x; see `FrozenNorm`.

    Returns:
        g′ [d_model] and the constant c.

    Raises:
        UnavailableError: The norm has another form.
    """
    frozen = FrozenNorm.at(norm, x[None])
    pulled = frozen.scale[0] * g
    return pulled - pulled.mean() if frozen.is_centred else pulled, g @ frozen.shift


_FAR = 1e4
"""The ε of a norm is negligible beside numbers of this size."""


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm as a linear map: its divisors σ are frozen at their values for x [pos, d_model].

        norm(x) = γ (x − μ(x)) / σ(x) + β          LayerNorm; RMSNorm has no μ and no β
        frozen(s) = γ (s − μ(s)) / σ(x)            so that Σ frozen(s) + β = norm(Σ s) for parts s with Σ s = x

    γ, β, μ and σ are measured from outputs of the norm, so any implementation of these forms works.
    """

    scale: Float[Tensor, "pos d_model"]
    """γ / σ at each position."""
    shift: Float[Tensor, " d_model"]
    """β."""
    is_centred: bool

    @classmethod
    @torch.no_grad()
    def at(cls, norm: nn.Module, x: Float[Tensor, "pos d_model"]) -> FrozenNorm:
        """Measure a norm at x. Raises `UnavailableError` for a norm of another form."""
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
        """The image of each part, without the shift β."""
        return (parts - parts.mean(dim=-1, keepdim=True) if self.is_centred else parts) * self.scale.to(parts.dtype)
