"""How the checks call a model: required masks, masks for one length, masks that are left out, padding in the code."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from xformer.doctor.arguments import cut_to
from xformer.doctor.diagnose import token_model_of
from xformer.doctor.model_call import ModelCall
from xformer.errors import InputError, UnavailableError

VOCAB, D, H = 53, 24, 4
SOURCE, TARGET = TOKENS[:, :9], TOKENS[:, 3:9]
PAIR = {"src": SOURCE, "tgt": TARGET}


def later(n: int) -> Tensor:
    return torch.full((n, n), -math.inf).triu(1)


class Translator(nn.Module):
    """PyTorch's Transformer; what a subclass passes to it is the question."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place, self.out = nn.Embedding(VOCAB, D), nn.Embedding(32, D), nn.Linear(D, VOCAB)
        with warnings.catch_warnings(action="ignore"):  # of nested tensors
            self.layers = nn.Transformer(D, H, 2, 2, 48, batch_first=True, norm_first=True)

    def run(self, src: Tensor, tgt: Tensor, **masks: Tensor | None) -> Tensor:
        x, y = (self.embed(one) + self.place(torch.arange(one.shape[1])) for one in (src, tgt))
        return self.out(self.layers(x, y, **masks))


class WithMask(Translator):
    def forward(self, src: Tensor, tgt: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        return self.run(src, tgt, tgt_mask=tgt_mask)


class Required(Translator):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor, tgt: Tensor) -> Tensor:
        masks = {"src_key_padding_mask": src_key_padding_mask, "memory_key_padding_mask": src_key_padding_mask}
        return self.run(src, tgt, tgt_mask=later(tgt.shape[1]), **masks)


class Open(Translator):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.run(src, tgt)


class WithPad(Translator):
    """Finds padding in its tokens."""

    hides, pad = True, 7

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = src == self.pad
        memory = padding if self.hides else None
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": memory}
        return self.run(src, tgt, tgt_mask=later(tgt.shape[1]), **masks)


class Gpt(nn.Module):
    """Causal only if a mask is passed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        layer = nn.TransformerEncoderLayer(D, H, 48, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.out(self.layers(self.embed(ids), mask=mask))


class WithClass(nn.Module):
    """A class token takes the first of 20 positions, so that 19 tokens can be read."""

    def __init__(self, n: int = 20) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place, self.out = nn.Embedding(VOCAB, D), nn.Embedding(n, D), nn.Linear(D, VOCAB)
        layer = nn.TransformerEncoderLayer(D, H, 48, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.pad(ids, (1, 0), value=1)
        return self.out(self.layers(self.embed(x) + self.place(torch.arange(x.shape[1]))))[:, 1:]


def findings(model: nn.Module, inputs: Any, **options: Any) -> dict[str, tuple[str, str]]:
    diagnosis = xformer.diagnose(model, inputs, **options)
    return {one.check: (one.verdict, one.sentence) for one in diagnosis.findings}


def test_required_mask_of_padding_shows_all_tokens() -> None:
    found = findings(Required(), PAIR)
    assert found["right_padding"][0] == found["batch"][0] == found["causality"][0] == "holds"
    assert "could not run" not in {verdict for verdict, _ in found.values()}


def test_mask_for_one_length_is_cut_to_shorter_inputs() -> None:
    found = findings(WithMask(), PAIR | {"tgt_mask": later(TARGET.shape[1])})
    assert found["causality"][0] == found["key_value_groups"][0] == "holds"
    assert "could not run" not in {verdict for verdict, _ in found.values()}
    assert cut_to("mask", later(9), {9: 4, 6: 5}).shape == (4, 4)
    with pytest.raises(UnavailableError, match="mask is given for 6 tokens, and this check reads 7"):
        cut_to("mask", later(6), {6: 7})


def test_equal_lengths_do_not_tell_the_axes_of_a_mask() -> None:
    model = token_model_of(WithMask(), {"src": SOURCE, "tgt": SOURCE, "tgt_mask": later(9)})
    with pytest.raises(UnavailableError, match="try other lengths"):
        model.logits(ModelCall(SOURCE[:, :5], target=SOURCE[:, :6]))
    assert model.logits(ModelCall(SOURCE[:, :5], target=SOURCE[:, :5])).shape == (1, 5, VOCAB)


def test_argument_without_a_known_value_is_asked_for() -> None:
    class Needs(Translator):
        def forward(self, src: Tensor, src_mask: Tensor, tgt: Tensor) -> Tensor:
            return self.run(src, tgt, src_mask=src_mask)

    with pytest.raises(InputError, match=r"Needs\.forward also needs src_mask, whose values the checks cannot know"):
        xformer.diagnose(Needs(), PAIR)
    assert xformer.diagnose(Needs(), PAIR | {"src_mask": torch.zeros(9, 9)}, checks=["finite"]).ok


def test_mask_that_the_call_leaves_out_is_named() -> None:
    for model, inputs, name in ((WithMask(), PAIR, "tgt_mask"), (Gpt(), TOKENS, "mask")):
        verdict, sentence = findings(model, inputs)["causality"]
        assert verdict == "not applicable"
        assert sentence.startswith(f"Without the argument {name}, every token may attend to every other")
        given = inputs if isinstance(inputs, dict) else {"ids": inputs}
        n = TARGET.shape[1] if isinstance(inputs, dict) else TOKENS.shape[1]
        assert findings(model, given | {name: later(n)})["causality"][0] == "holds"
        broken = xformer.diagnose(model, inputs, checks=["causality", "formula"], causal=True).broken
        assert {one.check for one in broken} == {"causality", "formula"}
        assert all(f"ass the argument {name}, which the call leaves out" in one.remedy for one in broken)


def test_decoder_without_a_mask_is_unusual_unless_it_is_meant() -> None:
    [found] = xformer.diagnose(Open(), PAIR, checks=["causality"]).unusual
    assert found.sentence == "The decoder is not causal: a token of the target may attend to later ones."
    assert "tgt_mask" in found.remedy
    assert findings(Open(), PAIR, causal=False)["causality"][0] == "not applicable"
    assert findings(Required(), PAIR)["causality"][0] == "holds"
    [broken] = xformer.diagnose(Open(), PAIR, checks=["causality"], causal=True).broken
    assert "which the call leaves out" not in broken.remedy


def test_padding_that_the_code_finds_in_its_tokens_is_tried() -> None:
    model, wrong = WithPad(), WithPad()
    wrong.hides = False
    assert token_model_of(model, PAIR).pad_in_code == 7
    assert token_model_of(Open(), PAIR).pad_in_code is None
    found = findings(model, PAIR)
    assert found["right_padding"] == ("holds", "Padding on the right changes no output.")
    assert found["masked_row"][1] == "The model takes no padding mask: it finds padding in its tokens."
    assert findings(Required(), PAIR)["right_padding"][1].endswith("whatever token it contains.")
    assert findings(wrong, PAIR)["right_padding"][0] == "broken"


def test_comparison_with_another_token_is_no_padding() -> None:
    class Separated(Open):
        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            x, y = (self.embed(one) + self.place(torch.arange(one.shape[1])) for one in (src, tgt))
            return self.out(self.layers(x + (src == 9)[..., None], y))

    assert token_model_of(Separated(), PAIR).pad_in_code is None


def test_class_token_leaves_one_position_less() -> None:
    assert token_model_of(WithClass(), TOKENS).max_len == 19
    assert token_model_of(WithClass(1000), TOKENS).max_len == 1000  # no check reads as many
    assert "could not run" not in {verdict for verdict, _ in findings(WithClass(), TOKENS).values()}


class Prefix(Gpt):
    """Every query sees the first tokens."""

    n, more = 3, 0

    def forward(self, ids: Tensor) -> Tensor:
        mask = later(ids.shape[1] + self.more)[self.more :, : ids.shape[1]]
        mask[:, : self.n] = 0
        return self.out(self.layers(self.embed(ids), mask=mask))


def test_prefix_is_no_leak_but_a_later_token_is() -> None:
    model = Prefix()
    [found] = xformer.diagnose(model, TOKENS, checks=["causality"]).unusual
    assert found.sentence.startswith("The first 3 tokens see each other, as in a prefix language model")
    for more, options in ((1, {}), (0, {"causal": True}), (0, {"spec": "gpt"})):
        model.more = more
        [found] = xformer.diagnose(model, TOKENS, checks=["causality"], **options).broken
        assert "the model sees the future" in found.sentence
