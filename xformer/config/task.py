"""What a model is trained to do, and how the sequences it sees are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from xformer.config.base import Config, setting
from xformer.errors import ConfigError
from xformer.task_limits import TASK_LIMITS, Architecture, check_alphabet, check_text_name

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
