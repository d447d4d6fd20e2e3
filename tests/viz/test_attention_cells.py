"""What the attention view draws of a trace without its masks: every cell is allowed, as is promised."""

from __future__ import annotations

import torch

from tests.training.tiny import random_model
from xformer.analysis.attention_head import attention
from xformer.reading import from_trace
from xformer.trace import record
from xformer.viz.pattern_layers import pattern_layers

TOKENS = torch.tensor([[3, 7, 1, 9]])


def test_without_its_masks_every_cell_of_a_trace_counts_as_allowed() -> None:
    model = random_model("decoder")
    whole, bare = (from_trace(model, record(model, TOKENS, keep=keep)) for keep in (("*",), ("*.pattern",)))
    for there, layer in zip(pattern_layers(whole), pattern_layers(bare), strict=True):
        assert (layer.pattern == there.pattern).all()
        assert layer.allowed.all()
        assert not there.allowed.all()
    assert attention(bare, layer=0, head=1)["allowed"].all()
    assert attention(whole, layer=0, head=1)["allowed"].sum() == 10
