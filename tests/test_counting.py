"""Parameter counts by formula equal the real counts, and the displayed formulas evaluate to them."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import nn

from tests.layers.reference import ARCHITECTURES, FITTING, model_config
from xformer.config import ModelConfig
from xformer.counting import count_with_projections_to, n_parameters, parameters_by_part
from xformer.model import Transformer


def real_count(config: ModelConfig) -> int:
    """Build the model on the meta device, and count."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def evaluated(formula: str) -> int:
    """Evaluate a formula of the table."""
    return eval(formula.replace(",", "").replace("×", "*").replace("·", "*"))  # our own text, not a user's


CHANGES = [
    {},
    {"attention_bias": False, "ffn_bias": False},
    {"activation": "swiglu", "norm_kind": "rms"},
    {"activation": "swiglu", "ffn_bias": False, "attention_bias": False, "n_heads": 6, "n_kv_heads": 2},
    {"n_heads": 6, "n_kv_heads": 3},
    {"n_heads": 6, "n_kv_heads": 1, "attention_bias": False},
    {"d_ff": 0},
    {"output_bias": False},
    {"tied_output": True, "output_bias": False},
    {"final_norm": True},
    {"n_layers": 1, "n_heads": 1, "d_head": 2, "d_value": 1, "d_model": 1, "d_ff": 1, "vocab_size": 1, "max_len": 1},
    {"vocab_size": 40_009, "d_model": 1031, "n_layers": 13, "n_heads": 7, "d_head": 62, "d_ff": 4099, "max_len": 509},
]


IN_TURN = cycle(product(ARCHITECTURES, ["pre", "post", "none"]))
CONFIGS = [
    *({"architecture": a, "norm": n, **more} for (a, n), more in zip(IN_TURN, CHANGES, strict=False)),
    *({"architecture": architecture, "positions": positions} for architecture, positions in FITTING),
    *({"architecture": "encoder-decoder", "tied_source": True, "tied_output": tied} for tied in (True, False)),
]


@pytest.mark.parametrize("changes", CONFIGS)
def test_formulas_equal_the_real_parameter_counts(changes: dict[str, Any]) -> None:
    config = model_config(**changes)
    assert n_parameters(config) == real_count(config)
    for part in parameters_by_part(config):
        assert evaluated(part.formula) == part.count > 0


BASE = {"d_model": 512, "n_layers": 6, "d_ff": 2048, "vocab_size": 32_000}


def built(width: int) -> int:
    with torch.device("meta"):
        attention = nn.ModuleList(nn.Linear(512, width) for _ in range(4))
        feed_forward = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
        encoder = nn.ModuleList([attention, feed_forward, nn.LayerNorm(512), nn.LayerNorm(512)])
        decoder = nn.ModuleList([attention, feed_forward, *(nn.LayerNorm(512) for _ in range(3))])
        output = nn.Linear(512, 32_000)

    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    return 6 * count(encoder) + 6 * (count(decoder) + count(attention)) + count(output)


@pytest.mark.parametrize(("width", "total"), [(1024, 79_465_728), (512, 79_465_728 - 18 * 4 * (512 * 512 + 512))])
def test_projections_to_the_context_length_reproduce_the_miscount(width: int, total: int) -> None:
    """The miscount of the paper's base model is reproduced by building the mistaken layers, then corrected."""
    assert sum(part.count for part in count_with_projections_to(width, **BASE)) == built(width) == total
