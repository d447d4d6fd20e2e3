"""What is asked of a model's weights, whoever made it: where tokens become vectors, how layers reach the stream, what reads it.

    subject.weights.token_embedding()            the vector of each token
    subject.weights.projection("decoder.3.attn")   what maps the heads (or the neurons) of a layer back to the stream
    subject.weights.unembedding()                what the logits are read with

What a model does not have, or where nobody found it, raises `UnavailableError` with one plain sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.frozen_norm import FrozenNorm
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
