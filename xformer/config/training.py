"""The configuration of a task and of its training: sequences, optimiser, schedule, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from xformer.config.base import Config, setting
from xformer.errors import ConfigError
from xformer.task_limits import TASK_LIMITS, Architecture, check_alphabet, check_text_name

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

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASK_LIMITS)]


# fmt: off
class TaskConfig(Config, frozen=True):
    """A task and its sizes. For modular addition `symbols` is the modulus; for addition the lengths are those of one number.

    Raises:
        ConfigError: A setting breaks a rule; the message says which, and a value that works.

    Example:
        >>> import xformer
        >>> task = xformer.Task(xformer.TaskConfig(name="reverse", architecture="encoder", symbols=10, max_len=8))
        >>> len(task.vocabulary) >= 10
        True
    """

    name: Annotated[TaskName, setting("Task", "What the model learns to do.")]
    architecture: Annotated[Architecture, setting("Architecture", "An encoder answers all at once.")]
    symbols: Annotated[int, setting("Symbols", "How many different symbols a sequence is made of.")] = 19
    min_len: Annotated[int, setting("Shortest", "Length of the shortest sequence.")] = 3
    max_len: Annotated[int, setting("Longest", "Length of the longest sequence.")] = 15
    end_token: Annotated[bool, setting("End token", "Encoder: close every input with an end token.")] = False
    patch: Annotated[int,
                     setting("Patch", "Images only: the side of the patches that the model cuts them into, in pixels.")] = 0
    train_share: Annotated[float, setting("Share of pairs", "Modular addition only: how many of all pairs training may show; "
                                          "it is scored on the others.", 0.05, 0.95)] = 0.75
    text: Annotated[str, setting("Text", "Characters only: the name of the text; see `xformer.tasks.texts`.")] = ""
    alphabet: Annotated[str,
                        setting("Alphabet", "Characters only: all of them, so that a checkpoint needs no text.")] = ""
    # fmt: on

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        limits = TASK_LIMITS[self.name]
        low, high = limits.symbols
        if not low <= self.symbols <= high:
            rule = f"from {low} to {high:,}" if low < high else f"{low} for the task {self.name}"
            raise ConfigError(
                f"symbols must be {rule}, got {self.symbols}; for example symbols={min(max(low, 19), high)}."
            )
        low, high = limits.lengths
        if not low <= self.min_len <= self.max_len <= high:
            raise ConfigError(
                f"Lengths must satisfy {low} ≤ min_len ≤ max_len ≤ {high:,}, got min_len={self.min_len} and "
                f"max_len={self.max_len}; for example min_len={min(3, high)}, max_len={min(15, high)}."
            )
        if self.architecture not in limits.architectures:
            raise ConfigError(
                f"The task {self.name} is for architecture={' or '.join(map(repr, limits.architectures))}, "
                f"got {self.architecture!r}; for example architecture={limits.architectures[0]!r}."
            )
        if limits.is_image != (self.patch > 0) or (self.patch and self.max_len % self.patch):
            raise ConfigError(
                f"patch is for images alone and divides their side, 8, got patch={self.patch} for the task {self.name}; "
                f"for example patch={2 if limits.is_image else 0}."
            )
        if limits.is_image and self.end_token:
            raise ConfigError(
                f"An image has no end, so end_token must be false for the task {self.name}, got true; use False."
            )
        if limits.is_distinct and self.symbols < self.max_len:
            raise ConfigError(
                f"The symbols of a sequence are all different in the task {self.name}, so symbols must be at least "
                f"max_len, got symbols={self.symbols} and max_len={self.max_len}; for example symbols={self.max_len}."
            )
        if limits.is_text:
            self._check_text()
        elif self.text or self.alphabet:
            raise ConfigError(
                f"text and alphabet are for the task characters alone, got them for the task {self.name}; leave them empty."
            )
        return self

    def _check_text(self) -> None:
        check_text_name(self.text)
        check_alphabet(self.alphabet)
        if self.symbols != len(self.alphabet):
            raise ConfigError(
                f"Each character of the alphabet is a symbol, so symbols must be {len(self.alphabet)}, got {self.symbols}; "
                f"use symbols={len(self.alphabet)}."
            )
        if self.min_len != self.max_len:
            raise ConfigError(
                f"Windows of a text all have the same length, so min_len must be max_len, got min_len={self.min_len} and "
                f"max_len={self.max_len}; for example both {self.max_len}."
            )
