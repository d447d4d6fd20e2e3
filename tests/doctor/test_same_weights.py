"""A model with the weights of its reference: other outputs, other gradients, shared weights, and what is not compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.test_arguments import PAIR, WithPad
from tests.doctor.test_block_formulas import GPT, Block, D, network, pre
from tests.doctor.test_odd_styles import Experts, assigned
from tests.doctor.zoo.bugs import NANO, planted
from xformer.doctor.check import Finding
from xformer.doctor.diagnose import Diagnosis


def compared(model: nn.Module, spec: nn.Module, inputs: Any = TOKENS) -> Finding:
    [found] = xformer.diagnose(model, inputs, checks=["reference"], spec=spec).findings
    return found


def turned(model: GPT, x: Tensor) -> Tensor:
    return x + model.positions(torch.arange(x.shape[1]).flip(0))


def larger(model: GPT, x: Tensor) -> Tensor:
    return math.sqrt(D) * x + model.positions(torch.arange(x.shape[1]))


def doubled(self: Block, x: Tensor) -> Tensor:
    x = 2 * x + self.attend(self.n1(x))
    return x + self.feed(self.n2(x))


def detached(self: Block, x: Tensor) -> Tensor:
    x = x.detach() + self.attend(self.n1(x))
    return x + self.feed(self.n2(x))


WRONG: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "positions": (lambda: GPT(add=turned), "First seen in the positions (positions)."),
    "scale of the embedding": (lambda: GPT(add=larger), "First seen in layer 0: the input of blocks.0."),
    "factor": (lambda: GPT(doubled), "First seen in layer 0: the input of blocks.0.n2."),
    "epsilon": (lambda: GPT(norm=lambda: nn.LayerNorm(D, 1.0)), "First seen in layer 0: the norm."),
    "activation": (lambda: GPT(feed=network(nn.SiLU)), "First seen in layer 0: the feed-forward layer."),
    "last norm": (lambda: Unnormed(), "First seen in the input of out."),
}


class Unnormed(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.add(self, self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        self.final(x)
        return self.out(x)


@pytest.mark.parametrize("fault", WRONG)
def test_other_output_is_found_with_the_same_weights(fault: str) -> None:
    make, place = WRONG[fault]
    found = compared(make(), GPT())
    assert (found.verdict, found.cause) == ("broken", "other_than_reference")
    assert found.sentence.startswith("With the weights of the reference, the outputs differ by")
    assert found.whole_sentence.endswith(place)
    same = compared(make(), make())
    assert same.sentence == "With the weights of the reference, outputs and gradients are those of the reference."


def test_model_and_reference_stay_as_they_were() -> None:
    model, spec = GPT(), GPT()
    nn.init.normal_(spec.out.weight)
    before = [{name: one.clone() for name, one in module.state_dict().items()} for module in (model, spec)]
    assert compared(model.train(), spec.train()).verdict == "holds"
    for module, state in zip((model, spec), before, strict=True):
        assert module.training
        assert all(torch.equal(one, state[name]) for name, one in module.state_dict().items())
        assert all(one.grad is None for one in module.parameters())


def test_other_gradient_is_found_where_outputs_agree() -> None:
    found = compared(GPT(detached), GPT(pre))
    assert found.verdict == "broken"
    assert "the outputs agree, but the gradient of" in found.sentence
    assert compared(GPT(pre), GPT(pre)).verdict == "holds"


def test_padding_that_only_one_of_them_hides_is_found() -> None:
    wrong = WithPad()
    wrong.hides = False
    found = compared(wrong, WithPad(), PAIR)
    assert found.verdict == "broken"
    assert "with padding on the" in found.sentence
    assert compared(WithPad(), WithPad(), PAIR).verdict == "holds"


def test_one_layer_in_place_of_several_is_found() -> None:
    model = GPT()
    model.blocks[1] = model.blocks[0]
    found = compared(model, GPT())
    assert (
        found.sentence
        == "blocks.1.n1.weight and blocks.0.n1.weight are one weight in the model, and two in the reference."
    )
    found = compared(GPT(), model)
    assert found.sentence.endswith("are one weight in the reference, and two in the model.")
    assert compared(model, model).verdict == "holds"


def test_weights_that_only_one_of_them_has_are_named() -> None:
    model = GPT()
    model.out = nn.Linear(D, 64, bias=False)
    found = compared(model, GPT())
    assert (found.verdict, found.sentence) == (
        "unusual",
        "Weights of the model and the reference differ in name or size: out.bias.",
    )
    assert compared(model, model).verdict == "holds"


def test_other_names_are_not_compared_and_no_reference_is_needed(tmp_path: Any) -> None:
    found = compared(GPT(), planted(NANO, tmp_path)[0])
    assert found.verdict == "not applicable"
    assert "do not have the names and sizes of those of the reference" in found.sentence
    [found] = xformer.diagnose(GPT(), TOKENS, checks=["reference"], spec="gpt").findings
    assert found.sentence.startswith("No module is given as the specification")


def formula(model: nn.Module, spec: nn.Module) -> Finding:
    [found] = xformer.diagnose(model, TOKENS, checks=["formula"], spec=spec).findings
    return found


class Renamed(GPT):
    """The same network under another name, so that weights do not correspond."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        for old in ("tokens", "positions", "out", "blocks", "final"):
            self._modules[f"{old}_"] = self._modules.pop(old)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        return modules[f"{name}_"] if f"{name}_" in modules else super().__getattr__(name)


def test_part_that_cannot_be_read_is_said_to_be_not_checked() -> None:
    found = formula(Renamed(feed=lambda: Experts(assigned)), GPT())
    assert found.verdict == "could not run"
    assert found.sentence.startswith("Not checked, because the code of the model does not show it: the ")
    assert "the feed-forward network in layers 0, 1" in found.sentence
    same = formula(Renamed(), GPT())
    assert same.verdict == "holds"
    assert "Not checked" not in same.sentence


def test_what_neither_shows_is_said_to_be_not_compared() -> None:
    found = formula(Renamed(feed=lambda: Experts(assigned)), GPT(feed=lambda: Experts(assigned)))
    assert "Read in neither model: the sum after the feed-forward network" in found.sentence


class Unread(nn.Module):
    """Weights of an attention that no softmax makes."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return torch.ones(n, n).tril().div(torch.arange(1, n + 1)[:, None]) @ x


def test_nothing_is_said_about_attentions_that_cannot_be_read() -> None:
    model = GPT(attention=Unread)
    diagnosis: Diagnosis = xformer.diagnose(model, TOKENS, checks=["formula"])
    [found] = diagnosis.findings
    assert found.verdict == "not applicable"
    assert any(one.startswith("formula: Not checked, because no attention") for one in diagnosis.not_checked)
    assert xformer.diagnose(GPT(), TOKENS, checks=["formula"]).findings[0].verdict == "holds"
