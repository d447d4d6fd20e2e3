"""Analyses of a model with all of the later components: each decomposition sums to the recorded number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xformer
from tests.analysis.test_score_decomposition import check_sums
from tests.components.test_llama import SIZES
from tests.layers.reference import randomise
from xformer import analysis

TOKENS = "3 7 12 9 3 1 22 4"


def modern(norm: Any = "pre") -> xformer.Transformer:
    """Return a decoder with RMSNorm, SwiGLU, rotary positions, grouped heads and a sliding window."""
    more = {"norm": norm, "mask": "sliding_window", "window": 4}
    return randomise(xformer.Transformer(xformer.ModelConfig(**(SIZES | more)))).eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_parts_of_a_score_sum_to_the_score(norm: str) -> None:
    check_sums(xformer.read(modern(norm), TOKENS))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_parts_of_a_logit_sum_to_the_logit(norm: str) -> None:
    reading = xformer.read(modern(norm), TOKENS)
    frame = analysis.attribution(reading, position=5, token=11)
    assert not {"rounding", "unattributed"} & set(frame["kind"])
    assert sum(frame["contribution"].tolist()) == pytest.approx(float(reading.logits[0, 5, 11]), abs=1e-4)


def test_gate_activations_have_transformer_lens_names() -> None:
    reading = xformer.read(modern(), TOKENS)
    for theirs, ours in (("hook_pre", "pre"), ("hook_pre_linear", "up"), ("hook_post", "post")):
        assert torch.equal(reading[f"blocks.1.mlp.{theirs}"], reading[f"decoder.1.ffn.{ours}"])
