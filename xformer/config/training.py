"""How a model is trained: optimiser, schedule, and when to look at it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import model_validator

from xformer.config.base import Config, setting
from xformer.errors import ConfigError

_CHANGES = "pairs (step, peak) in the order of their steps, from step 1 on, with peaks from 0 to 1e+12"


# fmt: off
class TrainConfig(Config, frozen=True):
    """A training recipe: AdamW, a learning rate that rises and falls, and how often to report and to keep the weights.

    Raises:
        ConfigError: A setting breaks a rule; the message says which, and a value that works.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, https://arxiv.org/abs/1711.05101

    Example:
        >>> import xformer
        >>> recipe = xformer.TrainConfig(steps=500, batch_size=64, peak_lr=1e-3)
        >>> recipe.steps, recipe.seed
        (500, 0)
    """

    steps: Annotated[int,
                     setting("Steps", "How often the weights are changed, each time after one batch.", 1, 10_000_000, 100)]
    batch_size: Annotated[int, setting("Batch size", "Sequences per step.", 1, 65_536, 100)] = 32
    peak_lr: Annotated[float,
                       setting("Peak learning rate", "How far weights move in a step, where the schedule is highest.",
                               0, 1e12)] = 3e-3
    warmup: Annotated[float, setting("Warm-up", "Share of the steps over which the rate rises.", 0, 1)] = 0.2
    decay: Annotated[Literal["linear", "cosine", "none"],
                     setting("Decay", "How the rate falls after the warm-up.")] = "linear"
    final_lr: Annotated[float, setting("Final learning rate", "Where the decay ends.", 0, 1e12)] = 0.0
    beta1: Annotated[float, setting("β₁", "Adam: how much of the running mean of gradients is kept at each step.",
                                    0, below=1)] = 0.9
    beta2: Annotated[float, setting("β₂", "Adam: how much of the running mean of squared gradients is kept at each step.",
                                    0, example=0.9, below=1)] = 0.98
    adam_eps: Annotated[float, setting("Adam ε", "Adam: added to the divisor, so that it is never zero.", 0, 1)] = 1e-8
    weight_decay: Annotated[float,
                            setting("Weight decay", "AdamW: a step takes this share × the learning rate off each weight.",
                                    0, 100)] = 0.0
    clip_norm: Annotated[float, setting("Clip norm", "Longer gradients are shortened to it; 0 leaves them.", 0, 1e12)] = 1.0
    seed: Annotated[int, setting("Seed", "The same settings and seed give the same run.", 0, 2**63 - 1,
                                 rule="from 0 to 2^63 - 1")] = 0
    log_every: Annotated[int, setting("Report every", "Steps between two points of the curves.", 1, 1_000_000, 100)] = 20
    held_out: Annotated[int,
                        setting("Held-out examples", "Unseen sequences that each report is scored on.", 1, 65_536, 100)] = 256
    snapshot_every: Annotated[int, setting("Snapshot every", "Steps between two frames to scrub through; 0 keeps none.",
                                           0, rule="0 (never) or more")] = 100
    random_positions: Annotated[bool, setting("Random positions",
                                              "Train on position numbers with gaps, so that longer inputs have none that is "
                                              "new.")] = False
    target: Annotated[float, setting("Stop at exact match", "Stop early once it is reached; 0 never does.", 0, 1)] = 0.0
    lr_changes: Annotated[tuple[tuple[int, float], ...],
                          setting("Changes of the peak", "New peaks chosen while it ran, as (step, peak).",
                                  example=((200, 0.001),), rule=_CHANGES)] = ()
    # fmt: on
    # From its step on, a change makes the schedule that of a run with this `peak_lr`. It belongs to the settings, so that the
    # same settings give the same run again.

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        steps = [step for step, _ in self.lr_changes]
        if steps != sorted(steps) or not all(step >= 1 and 0 <= lr <= 1e12 for step, lr in self.lr_changes):
            raise ConfigError(f"lr_changes must be {_CHANGES}, got {self.lr_changes}; for example ((200, 0.001),).")
        return self
