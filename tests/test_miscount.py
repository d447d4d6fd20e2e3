"""The over-count of the paper's base model: reproduced by building the mistaken layers, then put right."""

from __future__ import annotations

import torch
from torch import nn

from xformer.counting import count_with_projections_to

SIZES = {"d_model": 512, "n_layers": 6, "d_ff": 2048, "vocab_size": 32_000}


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


def test_projections_to_the_context_length_give_the_over_count() -> None:
    counted = sum(part.count for part in count_with_projections_to(1024, **SIZES))
    assert counted == built(1024) == 79_465_728


def test_projections_to_d_model_explain_the_difference() -> None:
    right = sum(part.count for part in count_with_projections_to(512, **SIZES))
    assert right == built(512)
    assert 79_465_728 - right == 18 * 4 * (512 * 512 + 512)
