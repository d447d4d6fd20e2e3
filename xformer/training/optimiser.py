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
        groups = []
        for piece, decay in pieces:
            parameter = nn.Parameter(self.flat[piece])
            parameter.grad = self.gradient[piece]
            groups.append({"params": [parameter], "weight_decay": decay})
        self._adamw = torch.optim.AdamW(
            groups, lr=config.peak_lr, betas=(config.beta1, config.beta2), eps=config.adam_eps, fused=True
        )

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        self.gradient.zero_()

    def update(self, lr: float) -> Float[Tensor, ""]:
        """One step along the gradients; returns their norm before clipping."""
        norm = self.gradient.norm()
        if self.clip_norm:
            self.gradient.mul_((self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, besides the gradients."""
        state = {"weights": self.flat}
        for index, values in enumerate(self._adamw.state.values()):
            state |= {f"{index}.{name}": value for name, value in values.items()}
        return {name: value.detach().cpu().clone() for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        self.flat.copy_(state["weights"])
        parameters = [group["params"][0] for group in self._adamw.param_groups]
        for index, parameter in enumerate(parameters):
            prefix = f"{index}."
            values = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            if values:
                self._adamw.state[parameter] = {
                    name: value.to(self.flat.device).clone() for name, value in values.items()
                }
