"""The recipe of a training step: AdamW, the learning rate schedule, and random positions.

Schedule, with the warm-up over the first W = warmup · steps:

    warm-up   peak · step / W
    linear    peak + (final − peak) · t                          t = (step − 1 − W) / (steps − W)
    cosine    final + (peak − final) · (1 + cos πt) / 2          (Loshchilov & Hutter 2017, arXiv:1608.03983)

Random positions (Ruoss et al. 2023, arXiv:2305.16843) replace 1 2 3 4 5 with a random increasing choice such as 4 9 10 21 33,
so that a model trained on short inputs has seen every position of a long one. The range that the positions are drawn from is
random too, down to a range without gaps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import TrainConfig
from xformer.layers.masks import SequencePacking
from xformer.tasks import Batch

if TYPE_CHECKING:
    from torch.optim import AdamW


def adamw(model: nn.Module, config: TrainConfig) -> AdamW:
    """Return an AdamW optimiser (Loshchilov & Hutter 2019, arXiv:1711.05101) for a model.

    Weight decay applies to matrices, not to biases and norms.

    Example:
        >>> optimiser = adamw(nn.Linear(2, 3), TrainConfig(steps=10, weight_decay=0.1))
        >>> [group["weight_decay"] for group in optimiser.param_groups]
        [0.1, 0.0]
    """
    parameters = list(model.parameters())
    matrices: dict[str, Any] = {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay}
    others: dict[str, Any] = {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}
    betas, fused = (config.beta1, config.beta2), all(p.device.type in ("cpu", "cuda") for p in parameters)
    return torch.optim.AdamW([matrices, others], lr=config.peak_lr, betas=betas, eps=config.adam_eps, fused=fused)


def update(optimiser: AdamW, lr: float) -> None:
    """Take one optimiser step with this learning rate and the stored gradients."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()


def clip(model: nn.Module, most: float) -> Float[Tensor, ""]:
    """Clip the gradients to a total norm of `most`; 0 means no clipping. Returns the norm before clipping."""
    return nn.utils.clip_grad_norm_(model.parameters(), most or torch.inf)


def training_state(model: nn.Module, optimiser: AdamW) -> dict[str, Tensor]:
    """Return copies on the CPU of all tensors that the next update depends on.

    The names are `model.NAME` for weights, and `adamw.NAME.step`, `.exp_avg` and `.exp_avg_sq` for their moments.
    """
    tensors = {f"model.{name}": p for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        tensors |= {f"adamw.{name}.{key}": value for key, value in optimiser.state.get(p, {}).items()}
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}


def restore_training_state(model: nn.Module, optimiser: AdamW, tensors: dict[str, Tensor]) -> None:
    """Restore the tensors that `training_state` returned.

    Raises:
        KeyError: A tensor is missing.
        RuntimeError: A tensor has another shape than the model's parameter.
    """
    names = {p: name for name, p in model.named_parameters()}
    with torch.no_grad():
        for p, name in names.items():
            if tensors[f"model.{name}"].shape != p.shape:
                raise RuntimeError(f"{name} has another shape")
            p.copy_(tensors[f"model.{name}"])
    keys = ("step", "exp_avg", "exp_avg_sq")
    order = [names[p] for group in optimiser.param_groups for p in group["params"]]
    if not any(name.startswith("adamw.") for name in tensors):
        order = []  # before the first step there are no moments
    moments = {index: {key: tensors[f"adamw.{name}.{key}"] for key in keys} for index, name in enumerate(order)}
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 1.

    Example:
        >>> config = TrainConfig(steps=10, peak_lr=0.1, warmup=0.5, decay="none")
        >>> [learning_rate(config, step) for step in (1, 5, 10)]
        [0.02, 0.1, 0.1]
    """
    peak = next((peak for at, peak in reversed(config.lr_changes) if at <= step), config.peak_lr)
    warmup = round(config.warmup * config.steps)
    if step <= warmup:
        return peak * step / warmup
    if config.decay == "none":
        return peak
    t = min(1.0, (step - 1 - warmup) / max(1, config.steps - warmup))
    if config.decay == "linear":
        return peak + (config.final_lr - peak) * t
    return config.final_lr + (peak - config.final_lr) * (1 + math.cos(math.pi * t)) / 2


def with_peak(config: TrainConfig, after: int, peak: float) -> TrainConfig:
    """Return the settings with a new peak learning rate after a step. Raises `ConfigError` for an invalid value."""
    earlier = tuple(change for change in config.lr_changes if change[0] <= after)
    return config.replace(lr_changes=(*earlier, (after + 1, float(peak))))


def with_random_positions(batch: Batch, max_len: int, draw: torch.Generator) -> Batch:
    """Return a batch with random positions below `max_len`. An encoder-decoder draws them separately for each side."""
    layout, target = spread(batch.layout, max_len, draw), batch.target_layout
    return replace(batch, layout=layout, target_layout=None if target is None else spread(target, max_len, draw))


def spread(layout: SequencePacking, max_len: int, draw: torch.Generator) -> SequencePacking:
    """Return a layout in which the i-th token of each sequence has the i-th of the positions drawn for it."""
    positions, mirrored = layout.positions, layout.mirrored
    segments = torch.ones_like(positions) if layout.segments is None else layout.segments  # [batch, pos]
    for segment in range(1, int(segments.max()) + 1):
        inside = segments == segment  # [batch, pos]
        numbers = _numbers(inside.sum(dim=-1), max_len, draw)  # [batch, max_len]
        positions, mirrored = (
            torch.where(inside, numbers.gather(-1, index), now)
            for index, now in ((layout.positions, positions), (layout.mirrored, mirrored))
        )
    return replace(layout, positions=positions, mirrored=mirrored)


def _numbers(lengths: Int[Tensor, " batch"], max_len: int, draw: torch.Generator) -> Int[Tensor, "batch number"]:
    """Draw as many increasing positions as each length, at the start of each row; the rest of the row is filler."""
    every = torch.arange(max_len, device=lengths.device)  # [number]
    chance = torch.rand(len(lengths), max_len + 1, generator=draw).to(lengths.device)
    end = lengths + (chance[:, -1] * (max_len + 1 - lengths)).long()  # exclusive upper bound of the positions
    order = chance[:, :-1].masked_fill(every >= end[:, None], 2.0).argsort(dim=-1)
    is_chosen = order.argsort(dim=-1) < lengths[:, None]
    return torch.where(is_chosen, every, max_len - 1).sort(dim=-1).values
