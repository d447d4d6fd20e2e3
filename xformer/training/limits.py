"""How much may be asked of this server: for a class that shares it, and so that nobody fills its disk by mistake.

Each limit has a variable in the environment: XFORMER_MAX_WAITING=2 lets everyone have two runs waiting.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from xformer.errors import BookError, ConfigError
from xformer.presets import Preset
from xformer.training.book import Entry


@dataclass(frozen=True)
class Limits:
    """The most of everything."""

    waiting: int = 8
    """Runs of one person that wait or are trained."""
    waiting_in_all: int = 64
    """The same for all people together."""
    steps: int = 200_000
    parameters: int = 20_000_000
    cells: int = 4_000_000
    """batch_size × positions of a step."""
    disk: int = 4 * 1024**3
    """Bytes that all runs together may take."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The limits, with those that the environment changes. Raises `ConfigError` for a value that is no number."""
        changed = {}
        for field in fields(cls):
            variable = f"XFORMER_MAX_{field.name.upper()}"
            if variable in environment:
                text = environment[variable]
                if not (text.isascii() and text.isdigit()):
                    raise ConfigError(
                        f"{variable} must be a whole number, got {text!r:.40}; for example {field.default}."
                    )
                changed[field.name] = int(text)
        return cls(**changed)

    def check(self, settings: Preset, owner: str, entries: Sequence[Entry], folder: Path) -> None:
        """Raise `BookError` with one plain sentence when a run may not be added to those there are."""
        self.check_size(settings)
        self.check_waiting(owner, entries)
        self.check_disk(settings, folder)

    def check_waiting(self, owner: str, entries: Sequence[Entry]) -> None:
        """Raise `BookError` when this person, or all together, have as many runs under way as are allowed."""
        under_way = [entry for entry in entries if entry.state == "queued" or entry.is_active]
        mine = sum(entry.owner == owner for entry in under_way)
        if mine >= self.waiting:
            raise BookError(
                f"You have {mine} runs waiting or in training, and {self.waiting} are allowed; "
                "stop one, or wait until one is finished."
            )
        if len(under_way) >= self.waiting_in_all:
            raise BookError(
                f"{len(under_way)} runs are waiting on this server already; try again when some are finished."
            )

    def check_disk(self, settings: Preset, folder: Path) -> None:
        """Raise `BookError` when the files of the run would take more than is allowed, or than is there."""
        needed, used = disk_needed(settings), disk_used(folder)
        if used + needed > self.disk:
            raise BookError(
                f"The runs on this server take {megabytes(used)}, this one would take {megabytes(needed)} more, and "
                f"{megabytes(self.disk)} are allowed; delete some runs, or keep fewer snapshots."
            )
        folder.mkdir(parents=True, exist_ok=True)
        if needed > (free := shutil.disk_usage(folder).free):
            raise BookError(
                f"This run would take {megabytes(needed)} on the disk, and {megabytes(free)} are free there."
            )

    def check_size(self, settings: Preset) -> None:
        """Raise `BookError` when the run itself asks for too much."""
        n, cells = settings.model.n_parameters(), settings.train.batch_size * settings.task.max_len
        for what, asked, most in (
            ("parameters", n, self.parameters),
            ("steps", settings.train.steps, self.steps),
            ("tokens per step (batch size × longest input)", cells, self.cells),
        ):
            if asked > most:
                raise BookError(f"This run has {asked:,} {what}, and this server allows {most:,}; choose fewer.")


def disk_needed(settings: Preset) -> int:
    """About how many bytes the files of a run will take: its snapshots, and the weights with the optimiser's two moments."""
    weights = 4 * settings.model.n_parameters() + 8_000
    every = settings.train.snapshot_every
    n_snapshots = 2 + (settings.train.steps // every if every else 0)
    return weights * (n_snapshots + 3) + 400 * (settings.train.steps // settings.train.log_every)


def memory_needed(settings: Preset) -> int:
    """About how many bytes training holds at its peak: weights, gradient, two moments, and a step's activations."""
    model, train = settings.model, settings.train
    width = settings.task.max_len * (1 if model.architecture == "encoder" else 2) + 2
    streams = 2 if model.architecture == "encoder-decoder" else 1
    rows = train.batch_size * width
    per_layer = 8 * model.d_model + 3 * model.n_heads * (model.d_head + width) + 3 * model.d_ff
    activations = 4 * rows * (streams * model.n_layers * per_layer + 2 * model.vocab_size)
    return 16 * model.n_parameters() + 2 * activations


def disk_used(folder: Path) -> int:
    """The bytes of all files in a folder."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total


def megabytes(n: int) -> str:
    """A number of bytes as people say it."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{max(0.1, n / 1e6):.1f} MB"
