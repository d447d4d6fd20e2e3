"""Helpers that put bugs into many models and diagnose them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import xformer
from tests.training.tiny import tiny_preset
from xformer.doctor.equations.report import check_model
from xformer.doctor.faults import BUGS, Bug
from xformer.doctor.faults.lab import lab_run
from xformer.presets import PRESETS
from xformer.tasks import Task

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"
SHIPPED = sorted(path.parent.name for path in CHECKPOINTS.glob("*/model.safetensors"))

CONSEQUENCES = {
    "residual_after_norm": {"wrong_sum"},  # if the stream is already normalised to within the check's limit
    "init_too_small": {"uniform_heads", "adds_nothing"},
    "dead_neurons": {"adds_nothing"},
    "forgotten_return": {"no_padding_mask"},
}
"""Mistakes that may appear in addition to the bug, as its consequences."""

NOT_IN_A_TRACE = {name for name, bug in BUGS.items() if bug.shows == "in training"}


def fresh(name: str, most_layers: int | None = None) -> xformer.Transformer:
    config = PRESETS[name].model
    config = config.replace(n_layers=min(config.n_layers, most_layers or config.n_layers))
    return xformer.Transformer(config, torch.Generator().manual_seed(1)).eval()


@cache
def shipped(name: str) -> xformer.Checkpoint:
    return xformer.load(CHECKPOINTS / name)


def bugs_of(config: xformer.ModelConfig) -> Iterator[Bug]:
    return (bug for bug in BUGS.values() if bug.applies_to(config))


def kinds(model: xformer.Transformer, task: Task | None) -> list[str]:
    return [mistake.kind for mistake in check_model(model, task).mistakes]


def trained_with(bug: Bug | None) -> list[str]:
    """Return the kinds of mistakes in a tiny model that was briefly trained with the bug."""
    recipe: dict[str, Any] = {"steps": 10, "batch_size": 16, "log_every": 10, "snapshot_every": 0}
    sizes = {"d_model": 16, "d_ff": 32, "n_layers": 2, "norm": "pre", "positions": "rotary"}
    run = lab_run(tiny_preset("decoder", model=sizes, **recipe), bug, device="cpu")
    assert list(run.reports())
    return kinds(run.model.eval(), run.task)
