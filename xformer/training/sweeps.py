"""Sweeps: many models that train together as one run of the run store.

    for member in members_of(store.entry(run)):
        print(member.name, member.preset.train.seed)

The entry of a sweep holds the swept settings and an id for each model. A model becomes a run with that id when it is finished
or stopped; until then its files are in the folder of the sweep.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xformer.config import TaskConfig, TrainConfig
from xformer.errors import ConfigError
from xformer.presets import Preset, preset
from xformer.training.run_store import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from xformer.training.entry import Entry
    from xformer.training.run_store import RunStore


WORDS = {"peak_lr": "learning rate", "train_share": "share of pairs"}
"""Short names of settings with long titles."""
MOST_SETTINGS = 2
SHORT = 10
"""The most letters of a full name as a label."""


@dataclass(frozen=True)
class Member:
    """One model of a sweep."""

    number: int
    """Its index among the models, from 0."""
    id: str
    """Its id in the run store, as soon as it is a run."""
    values: Mapping[str, Any]
    """The swept settings of this model."""
    preset: Preset

    @property
    def name(self) -> str:
        """Its swept settings in words, such as “seed 3”."""
        return ", ".join(f"{words(name)} {value:g}" for name, value in self.values.items())

    @property
    def label(self) -> str:
        """A short name: “seed 3”, or the values alone of two settings."""
        values = [f"{value:g}" for value in self.values.values()]
        return self.name if len(values) == 1 and len(self.name) < SHORT else " · ".join(values)

    def folder(self, store: RunStore, sweep: str) -> Path:
        """Return the folder of its files before it is a run."""
        return store.folder_of(sweep) / "members" / f"{self.number:03d}"


def words(name: str) -> str:
    """Return the name of a setting on screens."""
    field = (TrainConfig.model_fields | TaskConfig.model_fields).get(name)
    return WORDS.get(name) or ((field.title if field else "") or name).lower()


def spec(settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the `sweep` column for these settings, with new ids. Raises `ConfigError` for no settings or no values."""
    if not 1 <= len(settings) <= MOST_SETTINGS or not all(settings.values()):
        raise ConfigError(
            f"A sweep needs one or two settings with at least one value each, got {len(settings)}: "
            f"{', '.join(settings) or 'none'}; for example seed=range(16)."
        )
    n = math.prod(len(values) for values in settings.values())
    return {
        "settings": {name: list(values) for name, values in settings.items()},
        "ids": [new_id() for _ in range(n)],
    }


def members_of(entry: Entry) -> list[Member]:
    """Return the models of a sweep; an empty list for a run of one model. Raises `ConfigError` for a damaged entry."""
    from xformer.training.many import sweep  # needs torch, which a list of runs does without

    if entry.sweep is None:
        return []
    settings, ids = entry.sweep["settings"], entry.sweep["ids"]
    return members(sweep(entry.settings(), **settings), settings, ids)


def members(presets: Sequence[Preset], settings: Iterable[str], ids: Sequence[str] = ()) -> list[Member]:
    """Return the models of a sweep over `settings`, in order. Without `ids` they do not belong to a run store."""
    return [
        Member(number, run, {name: _value(one, name) for name in settings}, one)
        for number, (one, run) in enumerate(zip(presets, ids or [""] * len(presets), strict=True))
    ]


def _value(preset: Preset, name: str) -> Any:
    return getattr(preset.train if name in TrainConfig.model_fields else preset.task, name)


def goal(entry: Entry) -> float:
    """Return the exact match on unseen examples from which a model of this run has solved its task."""
    return entry.train.get("target") or SOLVED


SOLVED = 0.99
"""The goal of a run without a target."""

SWEPT = (
    "seed", "peak_lr", "weight_decay", "warmup", "steps", "clip_norm", "beta1", "beta2", "adam_eps", "final_lr", "train_share",
)  # fmt: skip
"""The settings that can be swept, the most used first."""

USUAL = {
    "seed": "0-3", "peak_lr": "0.0003, 0.001, 0.003, 0.01, 0.03", "weight_decay": "0, 0.1, 1", "warmup": "0, 0.05, 0.2",
    "steps": "300, 600", "clip_norm": "0.3, 1, 3", "beta1": "0.8, 0.9, 0.95", "beta2": "0.9, 0.98, 0.999",
    "adam_eps": "1e-8, 1e-6, 1e-4", "final_lr": "0, 0.0003", "train_share": "0.3, 0.5, 0.7, 0.9",
}  # fmt: skip
"""Example values of each setting."""

MOST_VALUES = 1_000

_RANGE = re.compile(r"(\d{1,18})\s*(?:-|–|\.\.)\s*(\d{1,18})", re.ASCII)


def read_values(name: str, text: str) -> list[int] | list[float]:
    """Parse typed values of a setting, such as "0.001, 0.003" or "0-15". Raises `ConfigError` when there are none."""
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


@dataclass(frozen=True)
class ReadySweep:
    """A named sweep: a preset and the settings that are swept."""

    name: str
    title: str
    about: str
    preset: Preset
    settings: Mapping[str, Sequence[Any]]


def _seeds() -> ReadySweep:
    base = preset("reverse-small")
    return ReadySweep(
        "seeds",
        "Sixteen seeds of the reverser",
        "The same model and recipe, other dice: when does each find the anti-diagonal, and do all of them?",
        replace(base, train=base.train.replace(target=1.0)),
        {"seed": range(16)},
    )


def _rates() -> ReadySweep:
    base = preset("reverse-small")
    return ReadySweep(
        "rates",
        "Learning rate × seed",
        "Five learning rates, four seeds of each: where does the reverser learn in time, and where is it luck?",
        replace(base, train=base.train.replace(target=1.0, steps=500)),
        {"peak_lr": (0.0003, 0.001, 0.003, 0.01, 0.03), "seed": range(4)},
    )


def _generalise() -> ReadySweep:
    base = preset("modular")
    p = 43
    model = base.model.replace(vocab_size=p + 3, start_token=p + 2, end_token=p + 1)
    train = base.train.replace(steps=1_500, batch_size=256, held_out=512, decay="none", target=0.9)
    return ReadySweep(
        "generalise",
        "Weight decay × share of pairs",
        f"Addition modulo {p}, scored on pairs that training never showed: when is the rule found, not only the pairs?",
        replace(base, title=f"Addition modulo {p}", model=model, task=base.task.replace(symbols=p), train=train),
        {"weight_decay": (0.0, 0.3, 1.0), "train_share": (0.6, 0.7, 0.8, 0.9)},
    )


READY = {one.name: one for one in (_seeds(), _rates(), _generalise())}
