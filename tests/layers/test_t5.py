"""T5’s relative bias: buckets equal those of the published code, and biases are added to the scores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.layers.reference import ARCHITECTURES, assert_close, build, inputs
from xformer.doctor.equations.report import check_trace
from xformer.doctor.faults.bug import replace_modules
from xformer.layers.embedding import AddPositions
from xformer.positions.t5 import N_BUCKETS, bucket
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")


def published(relative_position: Tensor, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """`T5Attention._relative_position_bucket` of the transformers library, with a logarithm in single precision."""
    relative_buckets = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        relative_buckets += (relative_position > 0).long() * num_buckets
        relative_position = relative_position.abs()
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    large = torch.log(relative_position.float() / max_exact) / math.log(max_distance / max_exact)
    large = (max_exact + large * (num_buckets - max_exact)).nan_to_num(neginf=0).long()
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    return relative_buckets + torch.where(is_small, relative_position, large)


# By hand: 8 · 16^(j/8) = 8 · √2^j is 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5, and the next would be 128.
# 16 · 8^(j/16): 16, 18.2, 20.7, 23.6, 26.9, …, 86.7 (j = 13), 98.7, 112.4, and the next would be 128.
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_equal_those_of_the_published_code(causal: bool) -> None:
    offset = torch.arange(-1009, 1010)[None]
    assert bucket(offset, causal=causal).equal(published(offset, bidirectional=not causal))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_head_adds_its_bias_in_all_layers_but_not_in_cross_attention(architecture: str) -> None:
    model, tape = build(architecture=architecture, positions="t5"), Tape()
    model(*inputs(model), tape=tape)
    at = tape.activations
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        table = stack.positions.table.table
        assert table.shape == (N_BUCKETS, 3)
        assert len(list(stack.positions.parameters())) == 1
        for layer in range(2):
            attn = f"{name}.{layer}.{'self_attn' if (architecture, name) == ('encoder-decoder', 'decoder') else 'attn'}"
            n = at[f"{attn}.pattern"].shape[-1]
            offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # [query, key]
            bias = table[published(offset, bidirectional=name == "encoder")]  # [query, key, head]
            plain = at[f"{attn}.q"] @ at[f"{attn}.k"].mT / math.sqrt(10)
            expected = (plain + bias.permute(2, 0, 1)).masked_fill(~at[f"{attn}.mask"], float("-inf"))
            assert_close(at[f"{attn}.scores"], expected)
    assert not [name for name in at if "cross_attn.pos" in name or name.endswith("pos_embed")]


def test_a_causal_encoder_uses_only_buckets_of_earlier_keys() -> None:
    model, tape = build(architecture="encoder", positions="t5", causal=True), Tape()
    model(*inputs(model), tape=tape)
    n = tape.activations["encoder.0.attn.pos_bias"].shape[-1]
    offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    expected = model.encoder.positions.table.table[published(offset, bidirectional=False)].permute(2, 0, 1)[None]
    assert torch.equal(tape.activations["encoder.0.attn.pos_bias"], expected)


class Reversed(AddPositions):
    """A wrong encoding: keys are counted from the other end, so equal distances get different biases."""

    def bias(self, queries: Tensor, keys: Tensor, *given: Any, **how: Any) -> Tensor | None:
        return super().bias(queries, keys.flip(-1), *given, **how)


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_the_diagnosis_checks_the_bias(architecture: str) -> None:
    model = build(architecture=architecture, positions="t5").float()
    broken = replace_modules(model, AddPositions, Reversed)
    for adapter, expected in ((model, set()), (broken, {"wrong_rotary"})):
        mistakes = check_trace(xformer.record(adapter, *inputs(model)), model=adapter).mistakes
        assert {one.kind for one in mistakes if one.severity == "error"} == expected
