"""Models for the tests of training, decoding and checkpoints, small enough to train in milliseconds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import Checkpoint, load, to_bytes
from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training.card import from_file
from xformer.training.loop import Run
from xformer.training.run_store import RunStore

ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")


def tiny_task(architecture: str = "encoder", **options: Any) -> Task:
    """Return the task of reversing two to five symbols out of seven."""
    values = {"name": "reverse", "symbols": 7, "min_len": 2, "max_len": 5} | options
    return Task(TaskConfig(architecture=architecture, **values))


def tiny_model(task: Task, **options: Any) -> ModelConfig:
    """Return the configuration of a one-layer model that fits the task."""
    special = task.vocabulary.special
    sizes: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "max_len": 17}
    sizes |= {"vocab_size": len(task.vocabulary), "end_token": special.end, "start_token": special.start}
    return ModelConfig(architecture=task.config.architecture, **(sizes | options))


def tiny_preset(
    architecture: str = "encoder",
    *,
    model: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    **train: Any,
) -> Preset:
    """Return a preset whose run takes milliseconds; any of its settings can be overridden."""
    tiny = tiny_task(architecture, **(task or {}))
    recipe: dict[str, Any] = {"steps": 12, "batch_size": 4, "log_every": 5, "snapshot_every": 4, "held_out": 8}
    config = tiny_model(tiny, **(model or {}))
    return Preset("tiny", "Tiny", "For tests.", config, tiny.config, TrainConfig(**(recipe | train)))


def run_of(preset: Preset, out: Path | None = None, device: str = "cpu") -> Run:
    """Return a run before its first step."""
    return Run(preset, Task(preset.task), torch.device(device), out)


def trained(preset: Preset, device: str = "cpu") -> Run:
    """Return a finished run."""
    run = run_of(preset, device=device)
    list(run.reports())
    return run


def weights_of(run: Run) -> torch.Tensor:
    """Return all weights of a run as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def random_model(architecture: str, *, seed: int = 0, std: float = 0.6, **options: Any) -> Transformer:
    """Return a model in `eval()` mode with random parameters, including gains and biases. Its sizes are mostly prime."""
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
    """Return the p-value of Pearson's χ² test that `counts` deviate from `expected` by chance alone.

    P(χ² > x) = e^(−x/2) Σ (x/2)^i / i!  over i < k/2, exact for an even number k of degrees of freedom.
    """
    degrees = len(counts) - 1
    assert degrees % 2 == 0, "choose an odd number of classes"
    assert min(expected) >= 5, "the test needs at least five expected cases in each class"
    half = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True)) / 2
    return math.exp(-half) * sum(half**i / math.factorial(i) for i in range(degrees // 2))


def add_model(folder: Path, n_layers: int, n_heads: int) -> str:
    """Add an untrained model for the task of `reverse` to the runs of a server; return its name in links."""
    good = load(Path(__file__).parents[2] / "checkpoints" / "reverse")
    config = good.config.replace(n_layers=n_layers, n_heads=n_heads, d_head=1, d_value=1, d_ff=16)
    model = Transformer(config, torch.Generator().manual_seed(0)).eval()
    return from_file(RunStore(folder), to_bytes(Checkpoint(model, good.task, {"name": "many heads"})), owner="").run
