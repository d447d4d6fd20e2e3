"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) over one flat buffer that all parameters are views of.

A toy transformer has dozens of small tensors. Kept apart, clearing, clipping and updating them costs dozens of dispatches a
step; as one tensor, three. Gradients accumulate straight into a flat buffer of the same layout.
"""

from __future__ import annotations

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
        n_decayed = sum(p.numel() for p in parameters if p.dim() >= 2)
        self.flat: Float[Tensor, " n"] = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient: Float[Tensor, " n"] = torch.zeros_like(self.flat)
        start = 0
        for p in parameters:
            stop = start + p.numel()
            p.data = self.flat[start:stop].view_as(p)
            p.grad = self.gradient[start:stop].view_as(p)
            start = stop
        pieces = [(slice(0, n_decayed), config.weight_decay), (slice(n_decayed, None), 0.0)]
        if config.weight_decay == 0:
            pieces = [(slice(None), 0.0)]
        self._pieces = [Piece(self.flat[where], self.gradient[where], decay, config) for where, decay in pieces]

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        self.gradient.zero_()

    def update(self, lr: float) -> Float[Tensor, ""]:
        """One step along the gradients; returns their norm before clipping."""
        norm = self.gradient.norm()
        if self.clip_norm:
            self.gradient.mul_((self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        for piece in self._pieces:
            piece.update(lr)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, besides the gradients."""
        state = {"weights": self.flat}
        for index, piece in enumerate(self._pieces):
            state |= {f"{index}.{name}": value for name, value in piece.moments().items()}
        return {name: value.detach().cpu().clone() for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned. Raises `KeyError` or `RuntimeError` when it is that of another optimiser."""
        self.flat.copy_(state["weights"])
        for index, piece in enumerate(self._pieces):
            for name, value in piece.moments().items():
                value.copy_(state[f"{index}.{name}"])


class Piece:
    """One stretch of the buffer that decays alike, with its two moments.

        m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
        w ← w − η λ w − η m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    One fused kernel does it all: the one that `torch.optim.AdamW(fused=True)` calls, without the second that building that
    class takes (it imports the compiler).
    """

    def __init__(
        self, weights: Float[Tensor, " n"], gradient: Float[Tensor, " n"], decay: float, config: TrainConfig
    ) -> None:
        self.weights, self.gradient, self.decay, self.config = weights, gradient, decay, config
        self.m, self.v = torch.zeros_like(weights), torch.zeros_like(weights)
        self.t = torch.zeros((), dtype=torch.float32, device=weights.device)

    def moments(self) -> dict[str, Tensor]:
        """t, m and v under the names that `torch.optim.AdamW` gives them."""
        return {"step": self.t, "exp_avg": self.m, "exp_avg_sq": self.v}

    def update(self, lr: float) -> None:
        """One step along the gradient."""
        self.t += 1
        with torch.no_grad():
            torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
                [self.weights],
                [self.gradient],
                [self.m],
                [self.v],
                [],
                [self.t],
                lr=lr,
                beta1=self.config.beta1,
                beta2=self.config.beta2,
                weight_decay=self.decay,
                eps=self.config.adam_eps,
                amsgrad=False,
                maximize=False,
            )
