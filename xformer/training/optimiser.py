"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) with the settings of a `TrainConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import TrainConfig

if TYPE_CHECKING:
    from torch.optim import AdamW


def adamw(model: nn.Module, config: TrainConfig) -> AdamW:
    """Return the optimiser of a model. Weight decay applies to matrices; biases and norms are left out.

    Example:
        >>> optimiser = adamw(nn.Linear(2, 3), TrainConfig(steps=10, weight_decay=0.1))
        >>> [group["weight_decay"] for group in optimiser.param_groups]
        [0.1, 0.0]
    """
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.peak_lr,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        fused=all(p.device.type in ("cpu", "cuda") for p in parameters),
    )


def update(optimiser: AdamW, lr: float) -> None:
    """Make one step at this learning rate along the gradients as they are."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()


def clip(model: nn.Module, most: float) -> Float[Tensor, ""]:
    """Scale the gradients down to a norm of `most`, where it is not 0. Returns the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), most or torch.inf)


def training_state(model: nn.Module, optimiser: AdamW) -> dict[str, Tensor]:
    """Return copies of all tensors that the next update depends on, on the CPU.

    The names are `model.NAME` for weights, and `adamw.NAME.step`, `.exp_avg` and `.exp_avg_sq` for their moments.
    """
    found = {f"model.{name}": p for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        found |= {f"adamw.{name}.{key}": value for key, value in optimiser.state.get(p, {}).items()}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def restore_training_state(model: nn.Module, optimiser: AdamW, tensors: dict[str, Tensor]) -> None:
    """Go on from what `training_state` returned.

    Raises:
        KeyError: A tensor is missing.
        RuntimeError: The tensors are those of a model of another shape.
    """
    names = {p: name for name, p in model.named_parameters()}
    with torch.no_grad():
        for p, name in names.items():
            if tensors[f"model.{name}"].shape != p.shape:
                raise RuntimeError(f"{name} has another shape")
            p.copy_(tensors[f"model.{name}"])
    keys = ("step", "exp_avg", "exp_avg_sq")
    order = [names[p] for group in optimiser.param_groups for p in group["params"]]
    has_moments = any(name.startswith("adamw.") for name in tensors)  # none before the first step
    moments = {
        index: {key: tensors[f"adamw.{name}.{key}"] for key in keys} for index, name in enumerate(order) if has_moments
    }
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
