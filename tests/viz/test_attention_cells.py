"""What the attention view draws of a trace without its masks: every cell is allowed, as is promised."""

from __future__ import annotations

import torch

from tests.training.tiny import random_model
from xformer.trace import record
from xformer.viz.attention import head_frame, pattern_layers

TOKENS = torch.tensor([[3, 7, 1, 9]])
LABELS = ["3", "7", "1", "9"]


def test_without_its_masks_every_cell_of_a_trace_counts_as_allowed() -> None:
    model = random_model("decoder")
    whole, bare = record(model, TOKENS), record(model, TOKENS, keep=("*.pattern",))
    for there, layer in zip(pattern_layers(whole, LABELS), pattern_layers(bare, LABELS), strict=True):
        assert (layer.pattern == there.pattern).all()
        assert layer.allowed.all()
        assert not there.allowed.all()
    assert head_frame(bare, "decoder.0.attn", 1, LABELS, LABELS)["allowed"].all()
    assert head_frame(whole, "decoder.0.attn", 1, LABELS, LABELS)["allowed"].sum() == 10
