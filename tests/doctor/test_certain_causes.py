"""Causes and lines that are named only where they are certain, and parts that are named for one stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.test_arguments import PAIR, Open, Translator, later
from tests.doctor.test_block_formulas import GPT, Attention
from tests.doctor.test_block_formulas import D as WIDTH
from tests.doctor.test_causes import Decoder, appended, diagnosed, nothing, without_padding
from tests.doctor.test_formulas import D_HEAD, D, Reader, Separate
from xformer.doctor.check import CheckContext, FaultLocation, Finding
from xformer.doctor.diagnose import _named, token_model_of
from xformer.doctor.formulas.positions import LEARNED


def formulas(model: nn.Module, part: str, inputs: Any = TOKENS, **options: Any) -> Any:
    table = xformer.diagnose(model, inputs, checks=["formula"], **options).formulas
    return table[table["part"] == part]


# Masks


def turned(scores: Tensor) -> Tensor:
    mask = later(scores.shape[-1])
    return scores + mask.T


def compared_twice(scores: Tensor) -> Tensor:
    n = scores.shape[-1]
    shown = torch.ones(n, n).triu(1) == 1
    shown = shown & torch.ones(n, dtype=torch.bool)
    return scores.masked_fill(shown == 0, -1e9)


def used_wrongly(scores: Tensor) -> Tensor:
    n = scores.shape[-1]
    shown = torch.ones(n, n).tril()
    return scores.masked_fill(shown == 1, -1e9)


@pytest.mark.parametrize(
    ("masked", "text"),
    [(turned, "mask.T"), (compared_twice, "triu(1) == 1"), (used_wrongly, "shown == 1")],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_line_of_an_inverted_mask_is_that_which_inverts_it(masked: Callable[[Tensor], Tensor], text: str) -> None:
    found = formulas(Reader(lambda: Separate(masked=masked)), "mask", causal=True)
    assert set(found["cause"]) == {"mask_inverted"}
    assert all(text in line for line in found["text"])


def test_mask_that_hides_every_key_of_an_encoder_is_no_causal_mask() -> None:
    model = Reader(lambda: Separate(masked=lambda scores: scores - 1e5)).eval()
    [found] = xformer.diagnose(model, TOKENS, checks=["formula"], causal=False).broken
    assert found.cause == "mask_hides_every_key"
    assert found.sentence == "In layers 0, 1, the mask hides every key."
    assert not found.line
    assert xformer.diagnose(Reader(lambda: Separate(masked=lambda scores: scores)), TOKENS, causal=False).ok


class Masked(Translator):
    """A mask for each stack."""

    def __init__(self, source: Any = None, target: Any = later) -> None:
        super().__init__()
        self.masks = source, target

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        masks = (None if make is None else make(one.shape[1]) for make, one in zip(self.masks, (src, tgt), strict=True))
        return self.run(src, tgt, **dict(zip(("src_mask", "tgt_mask"), masks, strict=True)))


def test_encoder_with_a_causal_mask_is_unusual() -> None:
    [found] = xformer.diagnose(Masked(later), PAIR, checks=["formula"]).unusual
    assert found.cause == "encoder_is_causal"
    assert not xformer.diagnose(Masked(), PAIR, checks=["formula"]).unusual
    assert not xformer.diagnose(Masked(later), PAIR, checks=["formula"], spec=Masked(later)).broken


# What follows from a formula


def test_finding_in_the_encoder_does_not_follow_from_the_mask_of_the_decoder() -> None:
    class Padded(Translator):
        def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
            return self.run(src, tgt, src_key_padding_mask=src_key_padding_mask)

    diagnosis = xformer.diagnose(Padded(), PAIR, causal=True)
    causes = {one.check: (one.cause, diagnosis.explained_by(one)) for one in diagnosis.broken}
    assert causes["causality"][0] == causes["formula"][0] == "mask_not_applied"
    assert causes["causality"][1].startswith("mask_not_applied (test_arguments.py:")
    assert causes["masked_row"] == ("", "")
    assert causes["right_padding"][0] == "padding_not_masked"  # the memory is not masked
    assert not causes["right_padding"][1]


@pytest.mark.parametrize(
    ("path", "cause", "named"),
    [
        ("decoder.layers.0.self_attn.pattern", "mask", "mask_not_applied"),
        ("decoder.layers.0.multihead_attn.pattern", "mask", ""),
        ("encoder.layers.0.self_attn.pattern", "mask", ""),
        ("decoder.layers.0.self_attn.q", "q", ""),  # earlier than the mask
    ],
)
def test_cause_is_named_in_its_own_attention_alone(path: str, cause: str, named: str) -> None:
    context = CheckContext(token_model_of(Open(), PAIR, causal=True))
    finding = Finding("broken", "", check="causality", place=FaultLocation(f"layers.{path}", cause, 0))
    assert _named(context, finding).cause == named
    assert not _named(context, replace(finding, check="masked_row")).cause


def test_parameter_without_a_gradient_does_not_follow_from_a_mask() -> None:
    model = GPT(attention=lambda: Attention(is_causal=False))
    model.unused = nn.Embedding(5, 5)
    found = {one.check: one.cause for one in xformer.diagnose(model, TOKENS, causal=True).broken}
    assert found["causality"] == "mask_not_applied"
    assert not found["gradients"]


# Lines


def test_line_of_a_scale_is_named_only_if_one_number_makes_it() -> None:
    def both(scores: Tensor) -> Tensor:
        scores = scores / math.sqrt(D_HEAD)
        return scores * 3.0

    [two] = xformer.diagnose(Reader(lambda: Separate(scaled=both)), TOKENS, checks=["formula"]).unusual
    [one] = xformer.diagnose(Reader(lambda: Separate(scaled=lambda s: s * 3.0)), TOKENS, checks=["formula"]).unusual
    assert two.cause == one.cause == "scale_other"
    assert not two.line
    assert one.line.startswith("test_certain_causes.py:")


def test_line_of_a_lost_sum_is_the_same_in_the_last_layer() -> None:
    found = formulas(GPT(lost, final=False), "residual")
    found = found[found["cause"] == "residual_missing"]
    assert len(found) == 2
    assert set(found["text"]) == {"x = self.feed(self.n2(x))"}


def lost(self: Any, x: Tensor) -> Tensor:
    x = x + self.attend(self.n1(x))
    x = self.feed(self.n2(x))
    return x * 1.0


def swapped(past: Any, k: Tensor, v: Tensor) -> Any:
    return torch.cat([past[1], k], dim=2), torch.cat([past[0], v], dim=2)


def test_cache_that_returns_values_as_keys_is_not_said_to_be_unread() -> None:
    found = diagnosed(Decoder(kept=swapped), "cache")
    assert found.cause == "cache_keys_values_swapped"
    assert "The keys of the cached tokens are their values." in found.sentence
    assert not found.line
    assert diagnosed(Decoder(kept=appended), "cache").verdict == "holds"


def test_line_that_joins_a_cache_is_not_named_for_what_was_kept() -> None:
    class OfFirstLayer(Decoder):
        def forward(self, idx: Tensor, attention_mask: Any = None, past: Any = None) -> Any:
            return super().forward(idx, attention_mask, past and [past[0]] * len(past))

    found = diagnosed(OfFirstLayer(), "cache")
    assert found.cause == "cache_not_updated"
    assert not found.line


def test_line_of_a_mask_is_not_named_if_it_is_right_in_another_layer() -> None:
    class Last(Decoder):
        def part(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
            if name == "positions":
                self.number = 0
            self.number += name == "allowed"
            is_last = name == "allowed" and self.number == 2
            return without_padding if is_last else super().part(name, usual)

    found = diagnosed(Last(positions=nothing), "left_padding")
    both = diagnosed(Decoder(allowed=without_padding, positions=nothing), "left_padding")
    assert found.cause == both.cause == "padding_not_masked"
    assert (bool(found.line), bool(both.line)) == (False, True)


# Heads


class Heads(nn.Module):
    """A module for each head; or one of them for all."""

    def __init__(self, n_modules: int) -> None:
        super().__init__()
        heads = [Separate(split=lambda y: y.unflatten(2, (1, D)).transpose(1, 2)) for _ in range(n_modules)]
        self.heads, self.out = nn.ModuleList(heads * (2 // n_modules)), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


def test_one_module_for_all_heads_is_found_and_one_for_all_layers_is_not() -> None:
    assert "heads_equal" in set(formulas(Reader(lambda: Heads(1)), "heads")["cause"])
    assert "heads_equal" not in set(formulas(Reader(lambda: Heads(2)), "heads")["cause"])
    model = Reader(Separate)
    model.attentions[1] = model.attentions[0]
    assert "heads_equal" not in set(formulas(model, "heads")["cause"])


def test_what_follows_from_a_wrong_merge_is_not_stated_beside_it() -> None:
    found = formulas(Reader(lambda: Separate(merged=lambda z: z.reshape(len(z), -1, D))), "heads")
    assert set(found["cause"]) == {"merge_without_transpose"}
    interleaved = formulas(Reader(lambda: Separate(merged=lambda z: z.permute(0, 2, 3, 1).flatten(2))), "heads")
    assert set(interleaved["cause"]) == {"heads_interleaved"}


# Positions and norms


class Placed(Masked):
    """Positions in one of the stacks."""

    def __init__(self, which: tuple[int, int]) -> None:
        super().__init__()
        self.which = which

    def run(self, src: Tensor, tgt: Tensor, **masks: Tensor | None) -> Tensor:
        places = (w * self.place(torch.arange(one.shape[1])) for w, one in zip(self.which, (src, tgt), strict=True))
        x, y = (self.embed(one) + place for one, place in zip((src, tgt), places, strict=True))
        return self.out(self.layers(x, y, **masks))


def test_stack_without_positions_is_named() -> None:
    [found] = xformer.diagnose(Placed((0, 1)), PAIR, checks=["formula"]).unusual
    assert found.cause == "positions_missing"
    assert found.sentence.startswith("In the encoder, nothing depends on the positions of the tokens (")
    [found] = xformer.diagnose(Placed((1, 0)), PAIR, checks=["formula"], causal=False).unusual
    assert found.sentence.startswith("In the decoder, nothing depends on the positions of the tokens (")
    assert not xformer.diagnose(Placed((1, 1)), PAIR, checks=["formula"]).unusual


def test_positions_from_the_last_token_are_unusual() -> None:
    model = GPT(add=lambda model, x: x + model.positions(torch.arange(x.shape[1] - 1, -1, -1)))
    found = formulas(model, "positions").iloc[0]
    assert (found["formula"], found["cause"]) == (f"{LEARNED}, counted from the last", "positions_reversed")
    assert formulas(GPT(), "positions").iloc[0]["cause"] == ""


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_epsilon_as_large_as_the_variance_is_unusual(norm: Any) -> None:
    for epsilon, cause in ((1.0, "norm_epsilon"), (1e-5, ""), (1e-3, "")):
        found = formulas(GPT(norm=lambda epsilon=epsilon: norm(WIDTH, eps=epsilon)), "norm")
        assert set(found["cause"]) == {cause}
        assert all(one.endswith(", with ε = 1") == bool(cause) for one in found["formula"])
