"""What the attention view draws of a trace without its masks: every cell is allowed, as is promised."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from tests.training.tiny import random_model
from xformer.analysis.attention_patterns import REACH, attention
from xformer.errors import EditError
from xformer.reading import from_trace
from xformer.trace import record
from xformer.viz.attention_patterns import attention as attention_chart
from xformer.viz.packing import pattern_layers

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


def test_of_a_long_input_the_cells_around_one_are_those_of_the_whole() -> None:
    model = random_model("decoder")
    n = min(model.config.max_len, 2 * REACH + 7)
    tokens = torch.arange(n)[None] % (model.config.vocab_size - 1) + 1
    reading = from_trace(model, record(model, tokens))
    whole = attention(reading, layer=0, head=1)
    for query, key in ((0, 0), (n - 1, 3), (n // 2, n // 2)):
        rows, cols = (range(max(0, at - REACH), min(n, at + REACH + 1)) for at in (query, key))
        kept = [q * n + k for q in rows for k in cols]
        around = attention(reading, layer=0, head=1, around=(query, key))
        pd.testing.assert_frame_equal(around, whole.iloc[kept].reset_index(drop=True))
    with pytest.raises(EditError, match=f"{n} queries"):
        attention(reading, layer=0, head=1, around=(n, 0))


def test_the_cells_around_one_are_drawn_one_by_one() -> None:
    model = random_model("decoder")
    reading = from_trace(model, record(model, TOKENS))
    cells = attention_chart(reading, layer=0, head=1, around=(2, 1)).to_dict()
    drawn = next(iter(cells["datasets"].values()))
    assert [row["weight"] for row in drawn if row["allowed"]] == [
        float(w) for w in attention(reading, layer=0, head=1)["weight"].dropna()
    ]
