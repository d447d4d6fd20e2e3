"""How the learning rate moves: up along a line while the optimiser finds its feet, then down.

warm-up   peak · step / W                                        for the first W = warmup · steps
linear    peak + (final − peak) · t                              t = (step − 1 − W) / (steps − W)
cosine    final + (peak − final) · (1 + cos πt) / 2              (Loshchilov & Hutter 2017, arXiv:1608.03983)
"""

from __future__ import annotations

import math

from xformer.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of the `step`-th update, counted from 1."""
    peak = peak_at(config, step)
    warmup = round(config.warmup * config.steps)
    if step <= warmup:
        return peak * step / warmup
    if config.decay == "none":
        return peak
    t = min(1.0, (step - 1 - warmup) / max(1, config.steps - warmup))
    if config.decay == "linear":
        return peak + (config.final_lr - peak) * t
    return config.final_lr + (peak - config.final_lr) * (1 + math.cos(math.pi * t)) / 2


def peak_at(config: TrainConfig, step: int) -> float:
    """The peak that holds at a step: the latest one that was chosen by then."""
    return next((peak for at, peak in reversed(config.lr_changes) if at <= step), config.peak_lr)


def with_peak(config: TrainConfig, after: int, peak: float) -> TrainConfig:
    """The recipe with another peak from the step after `after` on. Raises `ConfigError` for a peak that is none."""
    earlier = tuple(change for change in config.lr_changes if change[0] <= after)
    return config.replace(lr_changes=(*earlier, (after + 1, float(peak))))
