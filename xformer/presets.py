"""Named configurations of model, task and training recipe, and published configurations with their parameter counts.

They are listed in `presets.toml`, together with the sources that they follow.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    """A model, a task and a training recipe that belong together."""

    name: str
    title: str
    about: str
    model: ModelConfig
    task: TaskConfig
    train: TrainConfig


@dataclass(frozen=True)
class Published:
    """A configuration from the literature and the parameter count printed with it."""

    title: str
    source: str
    model: ModelConfig
    printed: int
    note: str


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_SOURCES: dict[str, str] = _FILE.pop("sources")
PUBLISHED = {
    name: Published(one["title"], one["source"], ModelConfig.from_json(one["model"]), one["printed"], one["note"])
    for name, one in _FILE.pop("published").items()
}
PRESETS = {
    name: Preset(
        name,
        one["title"],
        one["about"],
        ModelConfig.from_json(one["model"]),
        TaskConfig.from_json(one["task"]),
        TrainConfig.from_json(one["train"]),
    )
    for name, one in _FILE.items()
}
RENAMED = {
    "seed-000": "tutorial-reverse",
    "seed-001-vit": "tutorial-vit",
    "seed-002": "tutorial-seq2seq",
    "seed-004-reverse": "tutorial-gpt",
}
"""Earlier names of presets, which existing runs and files still use."""


def current_name(name: str) -> str:
    """Return the current name of a preset."""
    return RENAMED.get(name, name)


def preset(name: Preset | str) -> Preset:
    """Return the preset with a current or earlier name; a `Preset` is returned unchanged.

    Raises `ConfigError`, listing the known names.
    """
    if isinstance(name, Preset):
        return name
    if (name := current_name(name)) not in PRESETS:
        raise ConfigError(f"There is no preset {name!r:.100}; the presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


def credit(preset: object) -> str:
    """Return the sources of a preset as Markdown, such as "The task: [title](address), author."; empty if none is known."""
    name = current_name(preset) if isinstance(preset, str) else ""
    return " ".join(_SOURCES[source] for source in _FILE.get(name, {}).get("sources", ()))
