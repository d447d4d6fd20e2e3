"""Checks of attention weights, mask constants and head groups: verdicts and locations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.doctor.checking import TOKENS, broken_place, decoder, found
from tests.doctor.plain_gpt import LAYER, PlainGPT
from tests.doctor.styles import VOCAB, Pair
from tests.doctor.test_watch import Reader
from tests.program.odd import Odd
from tests.program.zoo import future
from xformer.doctor.diagnose import token_model_of
from xformer.doctor.faults import BUGS
from xformer.doctor.watch import watch
from xformer.layers.attention import Attention


def own(**choices: Any) -> xformer.Transformer:
    return decoder(**({"n_kv_heads": 2} | choices))


@pytest.mark.parametrize("family", ["GPT-OSS", "T5"])
def test_correct_models_pass_the_attention_checks(family: str) -> None:
    for check in ("attention_rows", "mask_constant", "key_value_groups"):
        finding = found(check, FAMILIES[family].make())
        assert finding.verdict == "holds", finding.sentence


def test_rows_that_are_not_a_softmax_over_the_keys_are_found() -> None:
    for bug, fragment in (
        ("softmax_over_queries", "over the queries"),
        ("softmax_over_heads", "over the heads"),
        ("scaled_after_softmax", "a row sums to 0.5"),
        ("masked_after_softmax", "not softmax"),
    ):
        place = broken_place("attention_rows", BUGS[bug].broken(own()), fragment)
        assert place.layer == 0
        assert place.pattern is not None


class Rest(Odd):
    """Rows that sum to less than 1, by one of several denominators."""

    def __init__(self, kind: str, factor: float = 1.0) -> None:
        super().__init__()
        self.kind, self.factor = kind, factor

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = (q @ k.mT / 8).masked_fill(future(q.shape[2]), -1e9)
        highest = scores.amax(-1, keepdim=True)
        exponentials, shifted, powers = scores.exp(), (scores - highest).exp(), scores.exp2()
        weights = {
            "sink first": lambda: torch.cat([torch.ones_like(scores[..., :1]), scores], dim=-1).softmax(-1)[..., 1:],
            "padded first": lambda: F.pad(scores, (1, 0)).softmax(-1)[..., 1:],
            "padded last": lambda: F.pad(scores, (0, 1)).softmax(-1)[..., :-1],
            "off by one": lambda: exponentials / (1 + exponentials.sum(-1, keepdim=True)),
            "off by one, shifted": lambda: shifted / (shifted.sum(-1, keepdim=True) + (-highest).exp()),
            "constant after the shift": lambda: shifted / (1 + shifted.sum(-1, keepdim=True)),
            "base 2": lambda: powers / powers.sum(-1, keepdim=True),
            "rounding": lambda: exponentials / (exponentials.sum(-1, keepdim=True) + 1e-9),
        }[self.kind]()
        return weights * self.factor


SUMS_TO_LESS = ("sink first", "padded first", "padded last", "off by one", "off by one, shifted")


@pytest.mark.parametrize("kind", SUMS_TO_LESS)
def test_a_sink_and_an_added_constant_make_rows_sum_to_less_than_1(kind: str) -> None:
    model = Reader(Rest(kind)).eval()
    opened = token_model_of(model, TOKENS)
    finding, one = found("attention_rows", model), watch(opened, opened.base)[1]
    assert finding.verdict == "holds"
    assert "softmax(scores) and sums to 1, in 1 attentions. " in finding.sentence
    assert (
        f"sink or an added term, and sums to between {one.pattern.sum(-1).min():.3g} and 1, in 1 att"
        in finding.sentence
    )
    assert torch.equal(one.pattern, one.softmax)
    assert torch.equal(one.allowed[0, 0], ~future(one.pattern.shape[-1]))


@pytest.mark.parametrize("kind", ["base 2", "rounding"])
def test_rows_of_another_spelling_sum_to_1(kind: str) -> None:
    assert (
        "softmax(scores) and sums to 1, in 2 attentions." in found("attention_rows", Reader(Rest(kind)).eval()).sentence
    )


@pytest.mark.parametrize(("factor", "fragment"), [(0.9, "differ from softmax(scores) by"), (3.0, "a row sums to ")])
@pytest.mark.parametrize("kind", ["sink first", "padded last"])
def test_weights_beside_a_sink_that_are_changed_are_found(kind: str, factor: float, fragment: str) -> None:
    assert broken_place("attention_rows", Reader(Rest(kind, factor)).eval(), fragment).layer == 1


def test_rows_beside_an_added_constant_sum_to_at_most_1() -> None:
    assert broken_place("attention_rows", Reader(Rest("off by one", 3.0)).eval(), "a row sums to ").layer == 1
    fragment = "exp(scores) / (sum + constant): the constant would be"
    assert broken_place("attention_rows", Reader(Rest("constant after the shift")).eval(), fragment).layer == 1
    assert broken_place("attention_rows", Reader(Rest("base 2", 0.99)).eval(), "a row sums to 0.99").layer == 1


def test_returned_weights_that_differ_from_the_used_ones_are_found() -> None:
    model = PlainGPT()
    attention = model.blocks[LAYER].get_submodule("attention")
    attention.register_forward_hook(lambda _, __, output: (*output[:2], output[2].roll(1, dims=1)))
    assert broken_place("attention_rows", model, "returned weights").layer == LAYER


def test_weights_inside_a_kernel_cannot_be_checked() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    model = nn.Sequential(nn.Embedding(53, 12), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    assert found("attention_rows", model).verdict == "not applicable"
    seen = watch(token_model_of(model, TOKENS), token_model_of(model, TOKENS).base)
    assert [one.layer for one in seen] == [0, 1]


class MaskedWith(Attention):
    """Attention whose masked scores are `constant`, in head 1 only."""

    constant = -torch.inf

    def mask(self, scores: Tensor, mask: Any) -> Tensor:
        right = super().mask(scores.clone(), mask)
        is_one = torch.arange(self.n_heads)[:, None, None] == 1
        return torch.where(is_one & right.isneginf(), self.constant, right)


def test_a_mask_constant_too_close_to_the_scores_is_found() -> None:
    model = own()
    attention: Any = model.get_submodule("decoder.blocks.1.attn")
    attention.__class__ = MaskedWith
    for constant in (-torch.inf, -1e4):
        attention.constant = constant
        assert found("mask_constant", model).verdict == "holds"
    for constant in (-110.0, 0.0):
        attention.constant = constant
        place = broken_place("mask_constant", model)
        assert (place.layer, place.head) == (1, 1)
        assert place.key is not None
        assert place.query is not None
        assert place.key > place.query


def test_a_weak_padding_mask_of_an_encoder_is_found() -> None:
    model = FAMILIES["BERT"].make()
    assert "3.4e+38" in found("mask_constant", model).sentence

    def weaker(_: nn.Module, args: Any, more: Any) -> Any:
        mask = more["attention_mask"]
        return args, more | {"attention_mask": None if mask is None else mask.clamp(min=-50.0)}

    model.bert.encoder.layer[1].attention.get_submodule("self").register_forward_pre_hook(weaker, with_kwargs=True)
    place = broken_place("mask_constant", model)
    assert place.layer == 1
    assert place.key in (11, 12)


def test_a_missing_mask_is_not_reported_as_a_weak_one() -> None:
    assert found("mask_constant", BUGS["causal_ignored"].broken(own())).verdict == "not applicable"


class NotFinite(Attention):
    """Attention with one score that is not a number."""

    def mask(self, scores: Tensor, mask: Any) -> Tensor:
        right = super().mask(scores, mask).clone()
        right[:, 1, 2, 0] = torch.nan
        return right


def test_weights_that_are_not_finite_are_not_compared() -> None:
    model = own()
    model.get_submodule("decoder.blocks.1.attn").__class__ = NotFinite
    assert found("attention_rows", model).sentence.endswith("in 1 attentions.")
    model.get_submodule("decoder.blocks.0.attn").__class__ = NotFinite
    assert "NaN" in found("attention_rows", model).sentence
    assert found("attention_rows", model).verdict == "not applicable"


@pytest.mark.parametrize("n", [3, 4])
def test_equal_lengths_of_source_and_target_give_no_weak_mask(n: int) -> None:
    for seed in range(12):
        ids = torch.randint(VOCAB, (2, n), generator=torch.Generator().manual_seed(seed))
        inputs = {"input_ids": ids[:1], "decoder_input_ids": ids[1:]}
        diagnosis = xformer.diagnose(Pair(), inputs, checks=["mask_constant"])
        assert not diagnosis.broken, diagnosis.broken[0].sentence


def test_a_weak_mask_of_a_decoder_is_found_with_equal_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.doctor.styles.HIDDEN", -20.0)
    diagnosis = xformer.diagnose(Pair(), {"input_ids": TOKENS, "decoder_input_ids": TOKENS}, checks=["mask_constant"])
    assert [one.cause for one in diagnosis.broken] == ["mask_too_small"]


class Prefix(Attention):
    """Attention that is causal only after the first two tokens."""

    def mask(self, scores: Tensor, mask: Any) -> Tensor:
        right = super().mask(scores.clone(), mask)
        return torch.where(torch.arange(scores.shape[-1]) < 2, scores, right)


def test_a_key_that_is_not_masked_is_not_reported_as_a_weak_mask() -> None:
    model = own()
    for layer in range(2):
        model.get_submodule(f"decoder.blocks.{layer}.attn").__class__ = Prefix
    for seed in range(8):
        ids = torch.randint(53, (1, 8), generator=torch.Generator().manual_seed(seed))
        assert not xformer.diagnose(model, ids, checks=["mask_constant"]).broken


class InTurn(Attention):
    """Attention in which head h reads key/value head h mod n."""

    def share(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.n_heads // x.shape[1], 1, 1)


def test_heads_that_read_the_wrong_group_are_found() -> None:
    model = own()
    model.get_submodule("decoder.blocks.1.attn").__class__ = InTurn
    place = broken_place("key_value_groups", model, "A query head reads the key/value head of another group.")
    assert (place.layer, place.head) == (1, 1)


def test_groups_are_checked_in_both_stacks_of_an_encoder_decoder() -> None:
    model = own(architecture="encoder-decoder")
    assert found("key_value_groups", model).verdict == "holds"
    model.get_submodule("decoder.blocks.0.cross_attn").__class__ = InTurn
    assert found("key_value_groups", model).verdict == "broken"
