"""Every setting of a training run as a field of a form: its words and its choices are those of `xformer.config`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig

AUTO = "auto"
"""What stands for None."""
KINDS: dict[str, type[Config]] = {"task": TaskConfig, "model": ModelConfig, "train": TrainConfig}


@dataclass(frozen=True)
class Field:
    """One setting: `of` is "task", "model" or "train", `options` those of a choice; without any it is a number or a switch."""

    of: str
    name: str
    label: str
    help: str
    options: tuple[Any, ...]


def _fields(of: str, names: Iterable[str]) -> tuple[Field, ...]:
    found = {name: KINDS[of].model_fields[name] for name in names}
    return tuple(
        Field(of, name, one.title or name, one.description or "", _options(one.annotation))
        for name, one in found.items()
    )


def _options(kind: Any) -> tuple[Any, ...]:
    """The values to choose from; none of a number, a switch or a text."""
    first, *others = get_args(kind) or (None,)
    if NoneType in others:
        return (AUTO, True, False)
    return get_args(first) if Ellipsis in others else get_args(kind)


def _others(of: str, *left_out: str) -> tuple[Field, ...]:
    """All fields but some, so that a new setting is in the form by itself."""
    return _fields(of, [name for name in KINDS[of].model_fields if name not in left_out])


_MODEL = ("n_layers", "n_heads", "d_model", "d_ff", "positions", "norm")
_FROM_THE_TASK = ("architecture", "vocab_size", "pad_token", "start_token", "end_token", "image", "patch")
_TRAIN = ("steps", "batch_size", "peak_lr", "warmup", "seed", "target")

TASK = _others("task", "patch", "text", "alphabet")
MODEL, MODEL_MORE = _fields("model", _MODEL), _others("model", *_MODEL, *_FROM_THE_TASK)
TRAIN, TRAIN_MORE = _fields("train", _TRAIN), _others("train", *_TRAIN, "lr_changes")
EVERYTHING = (*TASK, *MODEL, *MODEL_MORE, *TRAIN, *TRAIN_MORE)
TRAINING = (*TRAIN, *TRAIN_MORE)
