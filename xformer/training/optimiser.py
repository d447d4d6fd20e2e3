"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) over one flat buffer that all parameters are views of.

A toy transformer has dozens of small tensors. Kept apart, clearing, clipping and updating them costs dozens of dispatches a
step; as one tensor, three. Gradients accumulate straight into a flat buffer of the same layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import TrainConfig


class FlatAdamW:
    """The optimiser of one model, which from now on keeps its parameters in `self.flat`.

    Weight decay spares biases and norms, as is usual, so matrices come first in the buffer and vectors after them.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.clip_norm = config.clip_norm
        parameters = sorted(model.parameters(), key=lambda p: p.dim() < 2)  # stable: matrices first
        ends = list(accumulate(p.numel() for p in parameters))
        self.places = {p: slice(end - p.numel(), end) for p, end in zip(parameters, ends, strict=True)}
        """Where in the buffer each parameter is."""
        n_decayed = sum(p.numel() for p in parameters if p.dim() >= 2)
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        pieces = [(slice(0, n_decayed), config.weight_decay), (slice(n_decayed, None), 0.0)]
        if config.weight_decay == 0:
            pieces = [(slice(None), 0.0)]
        self.pieces = [Piece(where, flat[where], decay, config) for where, decay in pieces]
        self.live_in(flat, torch.zeros_like(flat))

    def live_in(self, flat: Float[Tensor, " n"], gradient: Float[Tensor, " n"]) -> None:
        """Keep the parameters and their gradients in this storage from now on; what it holds is theirs already."""
        self.flat, self.gradient = flat, gradient
        for p, where in self.places.items():
            p.data = flat[where].view_as(p)
            p.grad = gradient[where].view_as(p)
        for piece in self.pieces:
            piece.weights, piece.gradient = flat[piece.where], gradient[piece.where]

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        self.gradient.zero_()

    def clip(self) -> Float[Tensor, ""]:
        """Make the gradients no longer than they may be; returns their norm before. Nothing in it waits for a GPU."""
        norm = self.gradient.norm()
        if self.clip_norm:
            self.gradient.mul_((self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def follow(self, lr: float | Float[Tensor, ""]) -> None:
        """One step along the gradients as they are. Nothing in it waits for a GPU."""
        for piece in self.pieces:
            piece.update(lr)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, besides the gradients."""
        state = {"weights": self.flat}
        for index, piece in enumerate(self.pieces):
            state |= {f"{index}.{name}": value for name, value in piece.moments().items()}
        return {name: value.detach().cpu().clone() for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned. Raises `KeyError` or `RuntimeError` when it is that of another optimiser."""
        self.flat.copy_(state["weights"])
        for index, piece in enumerate(self.pieces):
            for name, value in piece.moments().items():
                value.copy_(state[f"{index}.{name}"])


class Piece:
    """One stretch of the buffer that decays alike, with its two moments.

        m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
        w ← w − η λ w − η m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    One fused kernel does it all: the one that `torch.optim.AdamW(fused=True)` calls, without the second that building that
    class takes (it imports the compiler).
    """

    gradient: Float[Tensor, " n"]

    def __init__(self, where: slice, weights: Float[Tensor, " n"], decay: float, config: TrainConfig) -> None:
        self.where, self.weights, self.decay, self.config = where, weights, decay, config
        self.m, self.v = torch.zeros_like(weights), torch.zeros_like(weights)
        self.t = torch.zeros((), dtype=torch.float32, device=weights.device)

    def moments(self) -> dict[str, Tensor]:
        """t, m and v under the names that `torch.optim.AdamW` gives them."""
        return {"step": self.t, "exp_avg": self.m, "exp_avg_sq": self.v}

    def update(self, lr: float | Float[Tensor, ""]) -> None:
        """One step along the gradient."""
        update_alike([self], lr)

    @property
    def recipe(self) -> tuple[float, ...]:
        """What two pieces must have in common to be updated together."""
        return self.decay, self.config.beta1, self.config.beta2, self.config.adam_eps


def update_alike(pieces: Sequence[Piece], lr: float | Float[Tensor, ""]) -> None:
    """One step along the gradients of pieces that have one recipe: on a GPU one launch for all of them."""
    decay, beta1, beta2, eps = pieces[0].recipe
    with torch.no_grad():
        steps = [piece.t for piece in pieces]
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [piece.weights for piece in pieces],
            [piece.gradient for piece in pieces],
            [piece.m for piece in pieces],
            [piece.v for piece in pieces],
            [],
            steps,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
