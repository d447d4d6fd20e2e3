"""Checkpoints saved before a component was registered still load, and compute the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import xformer
from xformer.config import ModelConfig

CHECKPOINTS = Path(xformer.__file__).parents[1] / "checkpoints"
LATER = {"norm_kind", "n_kv_heads", "mask", "window"}
"""Fields of `ModelConfig` that were added with the registered components."""

BEFORE: dict[str, tuple[float, ...]] = {
    "addition": (-0.908086, 2.70985, 7.86009, 6.65743),
    "characters": (-10.1474, -0.316282, 4.5173, 3.20169),
    "digits": (-0.915514, -2.22883, -0.24206, 5.19713),
    "modular": (-1.32792, -1.31138, -18.4243, 15.6379),
    "reverse-decoder": (0.173506, 1.01101, 5.55429, 3.50009),
    "reverse-seq2seq": (-1.01287, 0.588181, 0.130012, 4.52683),
}
"""The first three logits of the first answer of a fixed batch, and the root mean square of all, computed by the code before
there were components."""


@pytest.mark.parametrize("name", BEFORE)
def test_an_old_checkpoint_loads_with_the_original_components_and_logits(name: str) -> None:
    checkpoint = xformer.load(CHECKPOINTS / name)
    assert checkpoint.task is not None
    with torch.no_grad():
        logits = checkpoint.task.sample(6, seed=5, purpose="test").logits(checkpoint.model)[0, 0]
    measured = [*logits[:3].tolist(), logits.square().mean().sqrt().item()]
    assert measured == pytest.approx(BEFORE[name], rel=1e-4, abs=1e-4)
    with safe_open(CHECKPOINTS / name / "model.safetensors", "pt") as file:
        stored = json.loads(file.metadata()["config"])
    assert not LATER & set(stored)
    config = checkpoint.model.config
    components = (config.norm_component, config.ffn_component, config.mask_component, config.kv_component)
    assert [one.name for one in components] == ["layer", stored["activation"], "full", "multi_head"]
    assert ModelConfig.from_json(config.to_json()) == config
