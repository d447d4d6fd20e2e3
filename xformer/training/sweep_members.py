"""The models of a sweep: many that are trained together as one run of the run store, each of which becomes a run of its own.

    for member in members_of(store.entry(run)):
        print(member.name, member.preset.train.seed)

A sweep is written down as what is swept, with an id for each model; under that id the model is a run like any other from the
moment on that it is finished, or stopped. Until then its files are in the folder of the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xformer.config import TaskConfig, TrainConfig
from xformer.errors import ConfigError
from xformer.training.run_store import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from xformer.presets import Preset
    from xformer.training.entry import Entry
    from xformer.training.run_store import RunStore

WORDS = {"peak_lr": "learning rate", "train_share": "share of pairs"}
"""What settings are called in a few words, where their titles are long."""
MOST_SETTINGS = 2
SHORT = 10
"""Letters that there is always room for."""


@dataclass(frozen=True)
class Member:
    """One model of a sweep."""

    number: int
    """Its place in the stack, from 0."""
    id: str
    """What it is called in the run store, as soon as it is a run."""
    values: Mapping[str, Any]
    """The settings that are its own."""
    preset: Preset

    @property
    def name(self) -> str:
        """What it is called among its like: “seed 3”."""
        return ", ".join(f"{words(name)} {value:g}" for name, value in self.values.items())

    @property
    def label(self) -> str:
        """The same where there is little room: “seed 3”, and of two settings their values."""
        values = [f"{value:g}" for value in self.values.values()]
        return self.name if len(values) == 1 and len(self.name) < SHORT else " · ".join(values)

    def folder(self, store: RunStore, sweep: str) -> Path:
        """Where its files are until it is a run."""
        return store.folder_of(sweep) / "members" / f"{self.number:03d}"


def words(name: str) -> str:
    """A setting as a person calls it."""
    field = (TrainConfig.model_fields | TaskConfig.model_fields).get(name)
    return WORDS.get(name) or ((field.title if field else "") or name).lower()


def spec(settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """What is written down of a sweep over these settings. Raises `ConfigError` where there is none, or one has no values."""
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
    """The models of a sweep; none of a run of one model. Raises `ConfigError` where the run store was edited into nonsense."""
    from xformer.training.many import sweep  # which needs torch; a list of runs does not

    if entry.sweep is None:
        return []
    settings, ids = entry.sweep["settings"], entry.sweep["ids"]
    return members(sweep(entry.settings(), **settings), settings, ids)


def members(presets: Sequence[Preset], settings: Iterable[str], ids: Sequence[str] = ()) -> list[Member]:
    """The models of a sweep over `settings`, in their order; without `ids` they are none of the run store's."""
    return [
        Member(number, run, {name: _value(one, name) for name in settings}, one)
        for number, (one, run) in enumerate(zip(presets, ids or [""] * len(presets), strict=True))
    ]


def _value(preset: Preset, name: str) -> Any:
    return getattr(preset.train if name in TrainConfig.model_fields else preset.task, name)


def goal(entry: Entry) -> float:
    """From which exact match on unseen examples on a model of this run has solved its task."""
    return entry.train.get("target") or SOLVED


SOLVED = 0.99
"""The goal of a run that does not stop at one."""
