"""Files of a run in training: snapshots, and the state to resume from.

OUT/snapshots/000200.safetensors   a complete checkpoint of step 200
OUT/state.safetensors              weights, optimiser and step: resuming is bit-identical to never having stopped (CPU)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from xformer.checkpoints import Checkpoint, save
from xformer.config import Config, TrainConfig
from xformer.errors import CheckpointError, ConfigError, TrainingError
from xformer.files import parse_header, strict_json, write_atomically
from xformer.paths import STATE, snapshot_file, snapshot_steps
from xformer.training.card import MAX_STATE_HEADER

MOST_ODD = 5
"""The most snapshots at steps that are not a multiple of `snapshot_every`."""


@dataclass(frozen=True)
class State:
    """The state of a run: tensors, and everything else as plain JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def write_snapshot(out: Path, step: int, checkpoint: Checkpoint) -> None:
    """Write the weights of one step. Raises `CheckpointError` for weights that are not finite."""
    save(checkpoint, snapshot_file(out, step))


def forget_after(out: Path, step: int) -> None:
    """Remove the snapshots after a step, from which the run resumes."""
    for later in snapshot_steps(out):
        if later > step:
            snapshot_file(out, later).unlink(missing_ok=True)


def thin_out(out: Path, every: int) -> None:
    """Keep only the last few snapshots of single steps, pauses and stops."""
    for step in [step for step in snapshot_steps(out) if step % every][:-MOST_ODD]:
        snapshot_file(out, step).unlink(missing_ok=True)


def forget_unfinished(out: Path) -> None:
    """Remove half-written files of a killed process. No other process may write there."""
    for file in out.rglob("*.part"):
        file.unlink(missing_ok=True)


def write_state(out: Path, state: State) -> None:
    """Write the state in place of the last one."""
    write_atomically(out / STATE, safetensors.torch.save(state.tensors, {"state": json.dumps(state.values)}))


def read_state(out: Path) -> State:
    """Read the state of an interrupted run. Raises `TrainingError` when there is none, or it is damaged."""
    if not (out / STATE).is_file():
        raise TrainingError(f"There is no run to resume in {out}; start one without resuming.")
    try:
        content = (out / STATE).read_bytes()
        header = parse_header(content, MAX_STATE_HEADER)
        values = strict_json(header.metadata.get("state", ""), "state")
        tensors = safetensors.torch.load(content)
    except (CheckpointError, SafetensorError) as error:
        raise TrainingError(f"The run in {out} cannot be resumed: {error}") from None
    if not isinstance(values, dict):
        raise TrainingError(f"The run in {out} cannot be resumed: its state is not a whole one.")
    return State(tensors, values)


def read_state_of(out: Path, settings: Mapping[str, Config]) -> State:
    """Read the state of a run with these settings, by the names "model", "task" and "train".

    Changes of the learning rate after the step of the state may differ.

    Raises:
        TrainingError: There is no state, it is damaged, or it belongs to a run with other settings.
    """
    state = read_state(out)
    step = state.values.get("step")
    for name, config in settings.items():
        try:
            had = type(config).from_json(state.values.get(name))
        except ConfigError:
            had = None
        if _until(step, had) != _until(step, config):
            raise TrainingError(f"The run in {out} had other {name} settings, so it cannot be resumed as this one.")
    return state


def _until(step: Any, config: Config | None) -> Config | None:
    """Return the configuration without the changes of the learning rate after a step."""
    if not (isinstance(config, TrainConfig) and isinstance(step, int)):
        return config
    return config.replace(lr_changes=tuple(change for change in config.lr_changes if change[0] <= step))


def remove_state(out: Path) -> None:
    """Remove the state of a finished run."""
    (out / STATE).unlink(missing_ok=True)
