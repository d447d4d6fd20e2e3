"""What is asked of a model's weights, whoever made it: where tokens become vectors, how layers reach the stream, what reads it.

    subject.weights.token_embedding()            the vector of each token
    subject.weights.projection("decoder.3.attn")   what maps the heads (or the neurons) of a layer back to the stream
    subject.weights.unembedding()                what the logits are read with

What a model does not have, or where nobody found it, raises `UnavailableError` with one plain sentence.
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
    """factor · norm(x W + b): how what a layer computes inside, its heads side by side or its neurons, reaches the stream."""

    weight: Float[Tensor, "inside d_model"]
    bias: Float[Tensor, " d_model"] | None = None
    norm: nn.Module | None = None
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Readout:
    """logits = cap · tanh(W norm(x) / cap) + b, without the cap and the norm where there are none."""

    matrix: Float[Tensor, "vocab d_model"]
    bias: Float[Tensor, " vocab"] | None = None
    norm: nn.Module | None = None
    softcap: float | None = None


class Weights(Protocol):
    """The weights of one model. Only read."""

    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab width"]:
        """The vector of each token, as a stack receives it."""
        ...

    def unembedding(self) -> Readout:
        """What reads the logits off the last state of the stream."""
        ...

    def projection(self, path: str) -> Projection:
        """What maps the inside of a layer to the stream."""
        ...

    def norm_after(self, path: str) -> nn.Module | None:
        """The norm that stands on the stream after a layer's output was added, where there is one."""
        ...

    def norm_before(self, path: str) -> nn.Module | None:
        """The norm between the stream and what a layer reads of it, where there is one."""
        ...

    def last_norm(self, stack: str) -> nn.Module | None:
        """The norm after a stack's last block, where there is one."""
        ...

    def n_parameters(self) -> int:
        """How many numbers the model has learned."""
        ...


@dataclass(frozen=True)
class UnavailableWeights:
    """Weights that nobody can reach."""

    name: str

    def token_embedding(self, stack: str | None = None) -> Tensor:
        raise UnavailableError(f"The vectors of the tokens of {self.name} are out of reach.")

    def unembedding(self) -> Readout:
        raise UnavailableError(f"The matrix that {self.name} reads its logits with is out of reach.")

    def projection(self, path: str) -> Projection:
        raise UnavailableError(f"What {path} of {self.name} writes to the stream is out of reach, part by part.")

    def norm_after(self, path: str) -> nn.Module | None:
        return None

    def n_parameters(self) -> int:
        raise UnavailableError(f"Nobody can count what {self.name} has learned.")

    def norm_before(self, path: str) -> nn.Module | None:
        return None

    def last_norm(self, stack: str) -> nn.Module | None:
        return None


@torch.no_grad()
def before_norm(
    norm: nn.Module, x: Float[Tensor, " d_model"], g: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, ""]]:
    """The readout g′ of a norm's input x that equals the readout g of its output, up to a constant: g · norm(x) = g′ · x + c.

    σ is frozen at its value at x; see `FrozenNorm`. Raises `UnavailableError` for a norm of another form.
    """
    frozen = FrozenNorm.at(norm, x[None])
    pulled = frozen.scale[0] * g
    return pulled - pulled.mean() if frozen.is_centred else pulled, g @ frozen.shift


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
