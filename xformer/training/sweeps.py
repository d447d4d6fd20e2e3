"""Sweeps: many models that train together as one run of the run store.

    for member in members_of(store.entry(run)):
        print(member.name, member.preset.train.seed)

The entry of a sweep stores the swept settings and an id for each model. A model becomes a run with that id when it finishes or
stops; until then its files are in the folder of the sweep.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.training.run_store import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from xformer.training.run_record import RunRecord
    from xformer.training.run_store import RunStore


OF_THE_TASK = ("train_share",)
"""Task settings that can be swept, because they do not change the shape of a batch."""


def sweep(preset: Preset | str, **settings: Sequence[Any]) -> list[Preset]:
    """Return a preset with every combination of training settings; the last setting changes fastest.

    Args:
        preset: The name of a preset, or your own `Preset`.
        settings: The values of each setting of `TrainConfig`, by its name.

    Returns:
        The presets, for `train_many` and `iter_train_many`.

    Raises:
        ConfigError: A setting does not exist or changes the shape of the model, or a value is invalid.

    Example:
        >>> import xformer
        >>> presets = xformer.sweep("reverse", peak_lr=(1e-3, 3e-3), seed=range(2))
        >>> [(one.train.peak_lr, one.train.seed) for one in presets]
        [(0.001, 0), (0.001, 1), (0.003, 0), (0.003, 1)]
    """
    preset = preset_named(preset)
    for name, values in settings.items():
        if not isinstance(values, Iterable):
            raise ConfigError(
                f"{name} must be a list of values, got {values!r:.100}; for example {name}=[{values!r:.100}]."
            )
        if name in ModelConfig.model_fields or (name in TaskConfig.model_fields and name not in OF_THE_TASK):
            what = f"Settings that change the model's shape or its inputs cannot be swept: got {name!r}"
            raise ConfigError(f"{what}; for example seed=range(16) or peak_lr=(0.001, 0.003) can.")
        if name == "train_share" and preset.task.name != "modular":
            what = f"train_share is a setting of modular addition only, got it for {preset.task.name}"
            raise ConfigError(f"{what}; for example sweep('modular', train_share=(0.6, 0.8)).")
    return [_with(preset, dict(zip(settings, values, strict=True))) for values in product(*settings.values())]


def _with(of: Preset, values: Mapping[str, Any]) -> Preset:
    task = {name: value for name, value in values.items() if name in OF_THE_TASK}
    train = {name: value for name, value in values.items() if name not in OF_THE_TASK}
    return replace(of, task=of.task.replace(**task), train=of.train.replace(**train))


def check_alike(presets: Sequence[Preset]) -> None:
    """Raise `ConfigError` if presets cannot be trained together."""
    if not presets:
        what = "Give at least one preset to train, got none"
        raise ConfigError(f"{what}; for example sweep('reverse-small', seed=range(16)).")
    first = presets[0]
    for number, one in enumerate(presets[1:], start=1):
        own = {name: getattr(first.task, name) for name in OF_THE_TASK}
        if (one.model, one.task.replace(**own)) != (first.model, first.task):
            what = f"must have one shape and one task, but preset {number} differs from preset 0"
            how = "vary the training settings, for example sweep('reverse-small', seed=range(16))"
            raise ConfigError(f"Models that are trained together {what}; {how}.")
        if one.train.batch_size != first.train.batch_size:
            got = f"got {first.train.batch_size} and {one.train.batch_size}; train each batch_size separately"
            raise ConfigError(f"Models that are trained together must have the same batch_size, {got}.")
    if first.model.dropout:
        what = "Models with dropout must be trained one by one, because each draws its own dropout masks"
        raise ConfigError(f"{what}; got dropout={first.model.dropout:g}, use dropout=0.")


WORDS = {"peak_lr": "learning rate", "train_share": "share of pairs"}
"""Short display names of settings with long titles."""


@dataclass(frozen=True)
class SweepMember:
    """One model of a sweep."""

    number: int
    """Its index among the models, from 0."""
    id: str
    """The id that it has in the run store once it becomes a run."""
    values: Mapping[str, Any]
    """The swept settings of this model."""
    preset: Preset

    @property
    def name(self) -> str:
        """Its swept settings as text, such as “seed 3”."""
        return ", ".join(f"{words(name)} {value:g}" for name, value in self.values.items())

    @property
    def label(self) -> str:
        """A short name: “seed 3”, or only the values if there are two settings or the name has ten characters or more."""
        values = [f"{value:g}" for value in self.values.values()]
        return self.name if len(values) == 1 and len(self.name) < 10 else " · ".join(values)

    def folder(self, store: RunStore, sweep: str) -> Path:
        """Return the folder that holds its files until it becomes a run."""
        return store.folder_of(sweep) / "members" / f"{self.number:03d}"


def words(name: str) -> str:
    """Return the display name of a setting."""
    field = (TrainConfig.model_fields | TaskConfig.model_fields).get(name)
    return WORDS.get(name) or ((field.title if field else "") or name).lower()


def spec(settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the `sweep` column for these settings, with new ids. Raises `ConfigError` if settings or values are missing."""
    if not 1 <= len(settings) <= 2 or not all(settings.values()):
        what = "A sweep needs one or two settings with at least one value each"
        got = f"got {len(settings)}: {', '.join(settings) or 'none'}"
        raise ConfigError(f"{what}, {got}; for example seed=range(16).")
    n = math.prod(len(values) for values in settings.values())
    return {"settings": {name: list(values) for name, values in settings.items()}, "ids": [new_id() for _ in range(n)]}


def members_of(entry: RunRecord) -> list[SweepMember]:
    """Return the models of a sweep; an empty list for a run of one model. Raises `ConfigError` if the entry is damaged."""
    if entry.sweep is None:
        return []
    settings, ids = entry.sweep["settings"], entry.sweep["ids"]
    return members(sweep(entry.settings(), **settings), settings, ids)


def members(presets: Sequence[Preset], settings: Iterable[str], ids: Sequence[str] = ()) -> list[SweepMember]:
    """Return the models of a sweep over `settings`, in order. Omit `ids` for models outside a run store."""
    return [
        SweepMember(number, run, {name: _value(one, name) for name in settings}, one)
        for number, (one, run) in enumerate(zip(presets, ids or [""] * len(presets), strict=True))
    ]


def _value(preset: Preset, name: str) -> Any:
    return getattr(preset.train if name in TrainConfig.model_fields else preset.task, name)


def goal(entry: RunRecord) -> float:
    """Return the exact match on unseen examples at which a model of this run counts as having solved its task."""
    return entry.train.get("target") or SOLVED


SOLVED = 0.99
"""The goal of a run without a target."""

USUAL = {
    "seed": "0-3", "peak_lr": "0.0003, 0.001, 0.003, 0.01, 0.03", "weight_decay": "0, 0.1, 1", "warmup": "0, 0.05, 0.2",
    "steps": "300, 600", "clip_norm": "0.3, 1, 3", "beta1": "0.8, 0.9, 0.95", "beta2": "0.9, 0.98, 0.999",
    "adam_eps": "1e-8, 1e-6, 1e-4", "final_lr": "0, 0.0003", "train_share": "0.3, 0.5, 0.7, 0.9",
}  # fmt: skip
"""Example values of each setting that can be swept, most common first."""

SWEPT = tuple(USUAL)

MAX_VALUES = 1_000

_RANGE = re.compile(r"(\d{1,18})\s*(?:-|–|\.\.)\s*(\d{1,18})", re.ASCII)


def read_values(name: str, text: str) -> list[int] | list[float]:
    """Parse the values of a setting as a user types them: "0.001, 0.003" or "0-15". Raises `ConfigError` if invalid."""
    field = TrainConfig.model_fields.get(name) or TaskConfig.model_fields[name]
    is_whole, values = field.annotation is int, []
    for part in filter(None, re.split(r"[,;\s]+", _RANGE.sub(r"\1-\2", text.strip()))):
        found = _RANGE.fullmatch(part) if is_whole else None
        try:
            values += range(int(found[1]), int(found[2]) + 1)[: MAX_VALUES + 1] if found else [_number(part, is_whole)]
        except ValueError:
            values = []
            break
    if len(values) > MAX_VALUES:
        what = f"A setting has at most {MAX_VALUES:,} values, got more in {text.strip()!r:.60}"
        raise ConfigError(f"{what}; for example {USUAL[name]}.")
    if not values:
        kinds = "whole numbers" if is_whole else "numbers"
        what = f"The values of {words(name)} must be {kinds} separated by commas, got {text.strip()!r:.60}"
        raise ConfigError(f"{what}; for example {USUAL[name]}.")
    return list(dict.fromkeys(values))


def _number(text: str, is_whole: bool) -> int | float:
    value = int(text) if is_whole else float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


@dataclass(frozen=True)
class ReadySweep:
    """A predefined sweep: a preset and the swept settings."""

    name: str
    title: str
    about: str
    preset: Preset
    settings: Mapping[str, Sequence[Any]]


def _ready() -> Iterator[ReadySweep]:
    small, modular, p = preset_named("reverse-small"), preset_named("modular"), 43
    many = replace(small, train=small.train.replace(target=1.0))
    about = "The same model and recipe with different seeds: when does each find the anti-diagonal, and do all of them?"
    yield ReadySweep("seeds", "Sixteen seeds of the reverser", about, many, {"seed": range(16)})
    settings = {"peak_lr": (0.0003, 0.001, 0.003, 0.01, 0.03), "seed": range(4)}
    many = replace(small, train=many.train.replace(steps=500))
    about = "Five learning rates with four seeds each: where does the reverser learn in time, and where is it luck?"
    yield ReadySweep("rates", "Learning rate × seed", about, many, settings)
    model = modular.model.replace(vocab_size=p + 3, start_token=p + 2, end_token=p + 1)
    train = modular.train.replace(steps=1_500, batch_size=256, held_out=512, decay="none", target=0.9)
    task = modular.task.replace(symbols=p)
    many = replace(modular, title=f"Addition modulo {p}", model=model, task=task, train=train)
    settings = {"weight_decay": (0.0, 0.3, 1.0), "train_share": (0.6, 0.7, 0.8, 0.9)}
    about = f"Addition modulo {p}, scored on unseen pairs: when does a model find the rule instead of memorising pairs?"
    yield ReadySweep("generalise", "Weight decay × share of pairs", about, many, settings)


READY = {one.name: one for one in _ready()}
