"""Limits for a server shared by several users, and estimates of the memory and disk space that a run needs.

Each limit has an environment variable: XFORMER_MAX_WAITING=2 allows each owner two runs that wait or train.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from xformer.counting import n_parameters
from xformer.disk_quota import DEFAULT_MOST, DiskQuota, disk_used, megabytes
from xformer.errors import ConfigError, RunStoreError
from xformer.memory import free_bytes, machine_bytes, peak_bytes
from xformer.presets import Preset
from xformer.training.run_record import RunRecord

MAX_METRICS = 50 * 10**6
"""Largest size of a run's metrics in bytes; the saved state of the run contains them too."""


@dataclass(frozen=True)
class Limits:
    """The largest allowed values.

    Example:
        >>> Limits.from_environment({"XFORMER_MAX_STEPS": "500"}).steps
        500
    """

    waiting: int = 8
    """Runs of one owner that are waiting or in training."""
    waiting_in_all: int = 64
    """Runs of all owners that are waiting or in training."""
    steps: int = 200_000
    parameters: int = 20_000_000
    models: int = 64
    """Models of a sweep."""
    cells: int = 4_000_000
    """batch_size × longest input of a training step."""
    run_memory: int = 4096
    """Memory of the process of one run, in MB."""
    disk: int = DEFAULT_MOST
    """Disk space of all runs and stored texts together, in bytes."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the limits with the overrides of the environment. Raises `ConfigError` for a value that is not a number."""
        changed = {}
        for field in fields(cls):
            name = f"XFORMER_MAX_{field.name.upper()}"
            if name in environment:
                text = environment[name]
                if not (text.isascii() and text.isdigit()):
                    raise ConfigError(f"{name} must be a whole number, got {text!r:.40}; for example {field.default}.")
                changed[field.name] = int(text)
        return cls(**changed)

    def check_queue(
        self, settings: Preset, owner: str, entries: Sequence[RunRecord], folder: Path, *, n_models: int = 1
    ) -> None:
        """Raise `RunStoreError` if the owner or the server has too many runs, or the disk quota is used up or reserved."""
        unfinished = [entry for entry in entries if entry.state == "queued" or entry.is_active]
        mine = sum(entry.owner == owner for entry in unfinished)
        if mine >= self.waiting:
            what = f"You have {mine} runs waiting or in training, and {self.waiting} are allowed"
            raise RunStoreError(f"{what}; stop one, or wait until one has finished.")
        if (n := len(unfinished)) >= self.waiting_in_all:
            raise RunStoreError(f"{n} runs are already waiting on this server; try again when some have finished.")
        self.check_disk(n_models * disk_needed(settings), "This run", entries, folder)

    def check_disk(self, n: int, what: str, entries: Sequence[RunRecord], folder: Path) -> None:
        """Raise `QuotaExceededError` if `n` more bytes exceed the disk quota, of which other runs may have reserved a part."""
        DiskQuota(folder, self.disk).check(n, what, promised=reserved_bytes(entries, folder))

    def check_size(self, settings: Preset, *, n_models: int = 1, together: int | None = None) -> None:
        """Raise `RunStoreError` if the run is too large. `together` of its models share a process, by default all."""
        if n_models > self.models:
            what = f"This run trains {n_models:,} models at once, and this server allows {self.models:,}"
            raise RunStoreError(f"{what}; choose fewer values.")
        n, cells = n_parameters(settings.model), settings.train.batch_size * settings.task.max_len
        for what, size, most in (
            ("parameters", n, self.parameters),
            ("steps", settings.train.steps, self.steps),
            ("tokens per step (batch size × longest input)", cells, self.cells),
        ):
            if size > most:
                raise RunStoreError(f"This run has {size:,} {what}, and this server allows {most:,}; choose fewer.")
        if (lines := metrics_needed(settings)) > MAX_METRICS:
            what = f"The reports of this run need about {megabytes(lines)}, and {megabytes(MAX_METRICS)} are allowed"
            raise RunStoreError(f"{what}; report less often, or choose fewer heads.")
        together = n_models if together is None else together
        needed, most = memory_needed(settings, n_models=together), min(self.run_memory * 1024**2, machine_bytes())
        if needed > most:
            what = f"This run needs about {megabytes(needed)} of memory, and this server allows {megabytes(most)}"
            raise RunStoreError(f"{what}; {_smaller(together)}")


def _smaller(n_models: int) -> str:
    return f"choose a smaller batch, shorter inputs, or {'fewer models' if n_models > 1 else 'a smaller model'}."


def check_memory(settings: Preset, device: str = "cpu", *, n_models: int = 1) -> None:
    """Raise `ConfigError` if a run on the CPU needs more memory than is free. GPU memory is not checked."""
    needed = memory_needed(settings, n_models=n_models)
    if device == "cpu" and needed > (free := free_bytes()):
        what = f"This run needs about {megabytes(needed)} of memory, and {megabytes(free)} are free on this machine"
        raise ConfigError(f"{what}; {_smaller(n_models)}")


def reserved_bytes(entries: Sequence[RunRecord], folder: Path) -> int:
    """Return the bytes that waiting and active runs will still write."""
    total = 0
    for entry in entries:
        if entry.state == "queued" or entry.is_active:
            with suppress(ConfigError):  # the settings are damaged, so the run writes nothing
                needed = disk_needed(entry.settings()) * n_models(entry)
                total += max(0, needed - disk_used(folder / entry.id))
    return total


def n_models(entry: RunRecord) -> int:
    """Return how many models a run trains."""
    return 1 if entry.sweep is None else len(entry.sweep["ids"])


FLOAT = 4

PROCESS = 290 * 10**6
"""Memory in bytes of a process that has imported torch and trained a very small model."""

PER_PARAMETER = 48
"""Bytes per parameter: weight, gradient and two moments, plus the same again and a copy while the state is saved."""

FUSED = 32
"""Largest number of tokens for which training stores the attention patterns; PyTorch's kernel for longer inputs does not."""


def memory_needed(settings: Preset, *, n_models: int = 1) -> int:
    """Estimate the peak memory of the process of a run, in bytes."""
    return PROCESS + n_models * (_memory_of_one(settings) - PROCESS)


def _memory_of_one(settings: Preset) -> int:
    from xformer.tasks import Task  # imports torch, which the disk estimates do not need
    from xformer.tasks.task import CHUNK

    model, task, train = settings.model, settings.task, settings.train
    rule = Task(task).rule
    width, longest = rule.stream_length((task.min_len + task.max_len) / 2), rule.stream_length(task.max_len)
    stacks = 2 if model.architecture == "encoder-decoder" else 1
    has_dropout = model.dropout > 0
    # Where the scores are stored, two examples may share a row.
    if has_dropout or model.position_kind.acts_on == "scores":
        cells = model.n_heads * 2 * longest * (3 if has_dropout else 2)
    else:
        cells = model.n_heads * (longest if longest <= FUSED else 1)
    heads = (2 * model.n_heads * (model.d_head + model.d_value) + cells) * (1.5 if stacks == 2 else 1)
    inner = model.ffn_component.n_saved + (2 if has_dropout else 0)
    layer = 5 * model.d_model + heads + inner * model.d_ff
    logits, masks = 3 * model.vocab_size, 3 * stacks * longest
    step = FLOAT * train.batch_size * width * ((stacks * model.n_layers + 1) * layer + logits + masks)
    held_out = FLOAT * train.held_out * width * (4 * model.d_model + heads + 1.5 * model.d_ff + logits + 4 * longest)
    drawn = CHUNK * train.batch_size * width * 8 * 5
    fixed = PROCESS + rule.library_bytes + PER_PARAMETER * n_parameters(model) + drawn
    return int(fixed + max(step, held_out, peak_bytes(model, int(rule.stream_length(rule.probe_size)))))


def weights_on_disk(settings: Preset) -> int:
    """Estimate the size of a snapshot, in bytes."""
    return FLOAT * n_parameters(settings.model) + 8_000


def metrics_needed(settings: Preset) -> int:
    """Estimate the size of a run's metrics in bytes: one line per report, with a number for each head."""
    line = 400 + 2 * 24 * settings.model.n_layers * settings.model.n_heads
    return line * (settings.train.steps // settings.train.log_every)


def disk_needed(settings: Preset) -> int:
    """Estimate the disk space of a run in bytes: snapshots, weights, two moments, and metrics.

    The metrics are written twice, to the run store and to the saved state.
    """
    every, train = settings.train.snapshot_every, settings.train
    n_snapshots = 2 + (train.steps // every if every else 0)
    return weights_on_disk(settings) * (n_snapshots + 3) + 2 * metrics_needed(settings)
