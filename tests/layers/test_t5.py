"""T5's relative bias: its buckets by a table counted by hand and by the published code, and the same numbers on every path."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.layers.reference import ARCHITECTURES, assert_close, assert_same, build, inputs, model_config
from xformer.analysis.positions import position_offsets
from xformer.bugs.bug import replace_modules
from xformer.diagnosis.diagnose import diagnose
from xformer.layers.attention import Cache
from xformer.layers.embedding import AddPositions
from xformer.positions.t5 import N_BUCKETS, bucket
from xformer.reading import from_trace
from xformer.tape import Tape
from xformer.trace import record

pytestmark = pytest.mark.usefixtures("float64")


def published(relative_position: Tensor, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """`T5Attention._relative_position_bucket` as the transformers library has it: a logarithm in single precision."""
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


# Counted by hand: 8 · 16^(j/8) = 8 · √2^j is 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5, and 128 would be the next.
BOTH_WAYS = {0: 0, 1: 1, 7: 7, 8: 8, 11: 8, 12: 9, 15: 9, 16: 10, 22: 10, 23: 11, 31: 11, 32: 12, 45: 12, 46: 13, 63: 13,
             64: 14, 90: 14, 91: 15, 127: 15, 128: 15, 100_000: 15}  # fmt: skip
# 16 · 8^(j/16): 16, 18.2, 20.7, 23.6, 26.9, …, 86.7 (j = 13), 98.7, 112.4, and 128 would be the next.
BACKWARDS = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 20: 17, 21: 18, 23: 18, 24: 19, 26: 19, 27: 20, 98: 29, 99: 30,
             112: 30, 113: 31, 128: 31, 100_000: 31}  # fmt: skip


def test_buckets_are_those_counted_by_hand() -> None:
    for distance, expected in BOTH_WAYS.items():
        assert bucket(torch.tensor([[-distance]]), causal=False).item() == expected, distance
        ahead = bucket(torch.tensor([[distance]]), causal=False).item()
        assert ahead == (expected + 16 if distance else 0), distance
    for distance, expected in BACKWARDS.items():
        assert bucket(torch.tensor([[-distance]]), causal=True).item() == expected, distance
        assert bucket(torch.tensor([[distance]]), causal=True).item() == 0


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_the_published_code(causal: bool) -> None:
    offset = torch.arange(-1009, 1010)[None]
    assert bucket(offset, causal=causal).equal(published(offset, bidirectional=not causal))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_head_adds_its_own_number_in_all_layers_and_never_across(architecture: str) -> None:
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


def test_a_causal_encoder_counts_backwards_only() -> None:
    model, tape = build(architecture="encoder", positions="t5", causal=True), Tape()
    model(*inputs(model), tape=tape)
    n = tape.activations["encoder.0.attn.pos_bias"].shape[-1]
    offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    expected = model.encoder.positions.table.table[published(offset, bidirectional=False)].permute(2, 0, 1)[None]
    assert torch.equal(tape.activations["encoder.0.attn.pos_bias"], expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_fast_path_has_the_same_values_and_gradients_as_the_recorded_one(architecture: str) -> None:
    model = build(architecture=architecture, positions="t5")
    given = inputs(model)
    tables = [stack.positions.table.table for stack in (model.encoder, model.decoder) if stack is not None]
    assert_same(model(*given), model(*given, tape=Tape()), tables, 1000)
    upstream = torch.randn(model(*given).shape, generator=torch.Generator().manual_seed(3))
    for table in tables:
        [grad] = torch.autograd.grad((model(*given) * upstream).sum(), [table])
        cell, step = (1, 2), 1e-6
        value, found = table[cell].item(), []
        with torch.no_grad():
            for table[cell] in (value + step, value - step):
                found.append((model(*given) * upstream).sum().item())
            table[cell] = value
        assert grad[cell].item() == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-5)
        assert grad[cell] != 0


def test_decoding_from_a_cache_says_what_a_whole_run_says() -> None:
    model = build(architecture="decoder", positions="t5", max_len=211)
    tokens = torch.randint(0, 23, (2, 151), generator=torch.Generator().manual_seed(5))  # past the last bucket's edge
    cache = Cache.empty(2)
    parts = [model.extend(tokens[:, a:b], cache) for a, b in ((0, 131), (131, 132), (132, 151))]
    assert_close(torch.cat(parts, dim=1), model(tokens), 2000)


def test_a_checkpoint_comes_back_with_its_table(tmp_path: Path) -> None:
    model = xformer.Transformer(model_config(positions="t5", d_head=5)).float().eval()
    with torch.no_grad():
        model.encoder.positions.table.table.normal_()
    xformer.save(model, tmp_path / "m")
    again = xformer.load(tmp_path / "m").model
    assert again.config == model.config
    assert torch.equal(again.encoder.positions.table.table, model.encoder.positions.table.table)


def test_what_is_drawn_is_what_is_added() -> None:
    for architecture, causal in (("encoder", False), ("decoder", True)):
        model = build(architecture=architecture, positions="t5")
        stack = model.encoder or model.decoder
        run = from_trace(model, record(model, torch.tensor([[3, 1, 2]])))
        table = position_offsets(run, n=29)
        assert sorted(set(table["offset"])) == list(range(-28, 1 if causal else 29))
        for row in table.itertuples():
            place = published(torch.tensor([row.offset]), bidirectional=not causal).item()
            assert row.bias == stack.positions.table.table[place, row.head].item()


class OneTooFar(AddPositions):
    """Counts every key one further away than it is."""

    def bias(self, queries: Tensor, keys: Tensor, *given: Any, **how: Any) -> Tensor | None:
        return super().bias(queries, keys - 1, *given, **how)


class Reversed(AddPositions):
    """Counts keys from the other end, so that equal distances get different numbers."""

    def bias(self, queries: Tensor, keys: Tensor, *given: Any, **how: Any) -> Tensor | None:
        return super().bias(queries, keys.flip(-1), *given, **how)


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_the_doctor_knows_what_the_bias_should_be(architecture: str) -> None:
    model = build(architecture=architecture, positions="t5").float()
    for wrong in (OneTooFar, Reversed):
        broken = replace_modules(model, AddPositions, wrong)
        for subject, is_wrong in ((model, False), (broken, True)):
            trace = xformer.record(subject, *inputs(model))
            findings = diagnose(trace, model=subject).findings
            found = {one.kind for one in findings if one.severity == "error"}
            assert found == ({"wrong-turn"} if is_wrong else set()), wrong
