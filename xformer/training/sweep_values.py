"""What a person types to say which values of a setting are swept: "0.001, 0.003", or "0-15" for whole numbers.

read_values("seed", "0-3")                # [0, 1, 2, 3]
"""

from __future__ import annotations

import math
import re

from xformer.config import TaskConfig, TrainConfig
from xformer.errors import ConfigError
from xformer.training.sweep_members import words

SWEPT = (
    "seed", "peak_lr", "weight_decay", "warmup", "steps", "clip_norm", "beta1", "beta2", "adam_eps", "final_lr", "train_share",
)  # fmt: skip
"""Settings that models which are trained together can differ in, the most asked for first."""
USUAL = {
    "seed": "0-3", "peak_lr": "0.0003, 0.001, 0.003, 0.01, 0.03", "weight_decay": "0, 0.1, 1", "warmup": "0, 0.05, 0.2",
    "steps": "300, 600", "clip_norm": "0.3, 1, 3", "beta1": "0.8, 0.9, 0.95", "beta2": "0.9, 0.98, 0.999",
    "adam_eps": "1e-8, 1e-6, 1e-4", "final_lr": "0, 0.0003", "train_share": "0.3, 0.5, 0.7, 0.9",
}  # fmt: skip
"""What is worth a try of each."""
MOST_VALUES = 1_000
_RANGE = re.compile(r"(\d{1,18})\s*(?:-|–|\.\.)\s*(\d{1,18})", re.ASCII)


def read_values(name: str, text: str) -> list[int] | list[float]:
    """The values of a setting that a text names, each once. Raises `ConfigError` with one sentence where it names none."""
    field = TrainConfig.model_fields.get(name) or TaskConfig.model_fields[name]
    is_whole, values = field.annotation is int, []
    for part in filter(None, re.split(r"[,;\s]+", _RANGE.sub(r"\1-\2", text.strip()))):
        found = _RANGE.fullmatch(part) if is_whole else None
        try:
            values += range(int(found[1]), int(found[2]) + 1)[: MOST_VALUES + 1] if found else [_number(part, is_whole)]
        except ValueError:
            values = []
            break
    if len(values) > MOST_VALUES:
        raise ConfigError(
            f"A setting has at most {MOST_VALUES:,} values, got more in {text.strip()!r:.60}; for example {USUAL[name]}."
        )
    if not values:
        kinds = "whole numbers" if is_whole else "numbers"
        raise ConfigError(
            f"The values of {words(name)} are {kinds} with commas between them, got {text.strip()!r:.60}; "
            f"for example {USUAL[name]}."
        )
    return list(dict.fromkeys(values))


def _number(text: str, is_whole: bool) -> int | float:
    value = int(text) if is_whole else float(text)
    if not math.isfinite(value):
        raise ValueError
    return value
