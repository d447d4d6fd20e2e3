"""What the tests of training, decoding and checkpoints share: models so small that a run takes a moment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training.loop import Run

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")


def tiny_task(architecture: str = "encoder", **options: Any) -> Task:
    """Reversal of two to five symbols out of seven."""
    values = {"name": "reverse", "symbols": 7, "min_len": 2, "max_len": 5} | options
    return Task(TaskConfig(architecture=architecture, **values))


def tiny_model(task: Task, **options: Any) -> ModelConfig:
    """A model of one layer that fits the task."""
    special = task.vocabulary.special
    sizes: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "max_len": 17}
    return ModelConfig(
        architecture=task.config.architecture,
        vocab_size=len(task.vocabulary),
        end_token=special.end,
        start_token=special.start,
        **(sizes | options),
    )


def tiny_preset(
    architecture: str = "encoder",
    *,
    model: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    **train: Any,
) -> Preset:
    """A preset whose run takes milliseconds; any of its settings can be given."""
    laid_out = tiny_task(architecture, **(task or {}))
    recipe: dict[str, Any] = {"steps": 12, "batch_size": 4, "log_every": 5, "snapshot_every": 4, "held_out": 8}
    return Preset(
        "tiny",
        "Tiny",
        "For tests.",
        tiny_model(laid_out, **(model or {})),
        laid_out.config,
        TrainConfig(**(recipe | train)),
    )


def run_of(preset: Preset, out: Path | None = None, device: str = "cpu") -> Run:
    """A run that has taken no step yet."""
    return Run(preset, Task(preset.task), torch.device(device), out)


def trained(preset: Preset, device: str = "cpu") -> Run:
    """A run at its end."""
    run = run_of(preset, device=device)
    list(run.reports())
    return run


def weights_of(run: Run) -> torch.Tensor:
    """All weights of a run as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def random_model(architecture: str, *, seed: int = 0, std: float = 0.6, **options: Any) -> Transformer:
    """A model in `eval()` mode whose every parameter is random, gains and biases too; prime sizes, 11 tokens."""
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 10, "d_value": 7}
    special = {} if architecture == "encoder" else {"start_token": 10}
    config = ModelConfig(architecture=architecture, **(sizes | {"d_ff": 17, "max_len": 12} | special | options))
    model = Transformer(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, std, generator=draw)
            else:
                parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.2, generator=draw)
    return model.eval()


def chance(counts: list[int], expected: list[float]) -> float:
    """How often chance alone makes counts stray at least as far from `expected` as these: Pearson's χ² test.

    P(χ² > x) = e^(−x/2) Σ (x/2)^i / i!  over i < k/2, exact for an even number k of degrees of freedom.
    """
    degrees = len(counts) - 1
    assert degrees % 2 == 0, "choose an odd number of classes"
    assert min(expected) >= 5, "the test needs five expected cases in every class"
    half = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True)) / 2
    return math.exp(-half) * sum(half**i / math.factorial(i) for i in range(degrees // 2))
