"""The checks run on a copy: all attributes of a module are copied where they can be, and the module stays as it was found."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.integrations.faulty_gpt import GPT
from xformer.doctor.token_model import TokenModel
from xformer.errors import InputError
from xformer.testing import assert_causal

VOCAB = 17
IDS = torch.arange(7)[None]


@dataclass
class Kept:
    """Results of a training step, kept for plotting."""

    weights: Tensor
    others: list[Any]


class Slotted:
    """A holder without a dictionary of attributes."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Uncopyable(GPT):
    """A module that refuses to be copied itself."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise ValueError("one of a kind")


def trained(make: type[GPT] = GPT) -> tuple[GPT, Tensor]:
    """A model after a backward pass, and a tensor of its graph."""
    torch.manual_seed(0)
    model = make(VOCAB, d_model=12, n_heads=3, max_len=12)
    logits = model(IDS)
    F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
    return model, logits


def stored_by_hook(model: GPT) -> Any:
    """A hook that stores the outputs of a block in a list of the module."""
    outputs: list[Tensor] = []
    model.blocks[0].register_forward_hook(lambda module, args, output: setattr(module, "last", [output]))
    model(IDS)
    return outputs


KEPT: dict[str, Callable[[GPT, Tensor], Any]] = {
    "a tensor": lambda _, x: x,
    "a list": lambda _, x: [x, [x * 2]],
    "a dictionary": lambda _, x: {"weights": x, 3: (x,)},
    "a deque": lambda _, x: deque([x], maxlen=3),
    "a dataclass": lambda _, x: Kept(x, [x]),
    "an object with slots": lambda _, x: Slotted(x),
    "a view of a weight": lambda model, _: model.token.weight[:3],
    "a hook that stores outputs": lambda model, _: stored_by_hook(model),
    "a lambda": lambda model, _: lambda x: model.norm(x),
    "a lock": lambda _, x: {"lock": threading.Lock(), "last": x},
    "a generator": lambda _, x: [(i for i in range(3)), x],
    "a torch.Generator": lambda _, x: Kept(x, [torch.Generator().manual_seed(3)]),
    "a thread's event in an object with slots": lambda _, x: Slotted([threading.Event(), x]),
    "a file": lambda _, x: {"log": sys.stderr, "last": x},
}


def found(model: nn.Module) -> list[Any]:
    """What a caller can see of a module: its attributes, modes and gradients."""
    parts = list(model.modules())
    return [*(id(value) for part in parts for value in vars(part).values()), *(part.training for part in parts)]


@pytest.mark.parametrize("name", KEPT)
def test_a_copy_is_made_whatever_a_module_keeps(name: str) -> None:
    model, logits = trained()
    vars(model.blocks[1])["kept"] = KEPT[name](model, logits)
    before, gradient = found(model), model.head.weight.grad
    token_model = TokenModel.of(model, IDS)
    for one in (token_model, token_model.shared(), token_model.copied()):
        torch.testing.assert_close(one.logits(one.base), logits.detach())
    assert found(model) == before
    assert model.head.weight.grad is gradient
    assert logits.grad_fn is not None


def test_the_doctor_checks_a_model_that_keeps_results_of_a_training_step() -> None:
    model, logits = trained()
    vars(model.blocks[1])["kept"] = [keep(model, logits) for keep in KEPT.values()]
    before = found(model)
    assert xformer.diagnose(model, IDS, checks=["causality", "gradients"]).ok
    assert_causal(model, IDS)
    assert xformer.compare_runs(model, trained()[0], IDS).first is None
    assert found(model) == before


class Noisy(GPT):
    """Draws random numbers from its own generator."""

    def __init__(self) -> None:
        super().__init__(VOCAB, d_model=12, n_heads=3, max_len=12)
        self.draw = torch.Generator().manual_seed(5)

    def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
        return super().forward(ids, pads) + 0.0 * torch.rand(1, generator=self.draw)


def test_a_copy_does_not_advance_the_generator_of_the_module() -> None:
    model = Noisy()
    before = model.draw.get_state()
    xformer.diagnose(model, IDS, checks=["causality"])
    assert torch.equal(model.draw.get_state(), before)


def test_a_module_that_refuses_to_be_copied_is_refused_by_name() -> None:
    model, _ = trained(Uncopyable)
    with pytest.raises(InputError, match="Uncopyable cannot be copied, and the checks need a copy: one of a kind"):
        xformer.diagnose(model, IDS)


def test_a_module_that_reads_positions_first_is_refused() -> None:
    """Its positions would be taken for texts, and every check of a batch would fail."""

    class PositionsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = nn.Embedding(13, 12), nn.TransformerEncoderLayer(12, 3, 20)

        def forward(self, ids: Tensor) -> Tensor:
            return self.layer(self.embed(ids))

    module = PositionsFirst().eval()
    column = torch.tensor([3, 1, 4, 1, 5])[:, None]
    with pytest.raises(InputError, match=r"this one reads them \[pos, batch\]"):
        TokenModel.of(module, column)
    assert TokenModel.of(module, column.mT).base.tokens.shape == (
        1,
        5,
    )  # as a row: the batch is attended over by mistake
    module.layer.self_attn.batch_first = True
    assert TokenModel.of(module, column).base.tokens.shape == (1, 1)


class Banded(nn.Module):
    """Attention to the keys from `back` before the query to `ahead` after it, which nothing declares."""

    def __init__(self, back: int, ahead: int) -> None:
        super().__init__()
        self.embed, self.out, self.back, self.ahead = nn.Embedding(19, 8), nn.Linear(8, 19), back, ahead

    def forward(self, ids: Tensor) -> Tensor:
        x, at = self.embed(ids), torch.arange(ids.shape[1])
        offset = at - at[:, None]
        scores = (x @ x.mT).masked_fill((offset < -self.back) | (offset > self.ahead), -torch.inf)
        return self.out(x + scores.softmax(dim=-1) @ x)


@pytest.mark.parametrize(
    ("back", "ahead", "is_causal"), [(5, 0, True), (5, 1, True), (0, 5, True), (30, 30, False), (9, 9, False)]
)
def test_a_model_whose_weights_are_on_one_side_looks_causal(back: int, ahead: int, is_causal: bool) -> None:
    ids = torch.randint(0, 19, (1, 13), generator=torch.Generator().manual_seed(0))
    assert TokenModel.of(Banded(back, ahead), ids).looks_causal == is_causal


class Leaking(Banded):
    """Causal, but for its first query, which attends everywhere."""

    def forward(self, ids: Tensor) -> Tensor:
        x, at = self.embed(ids), torch.arange(ids.shape[1])
        scores = (x @ x.mT).masked_fill((at > at[:, None]) & (at[:, None] > 0), -torch.inf)
        return self.out(x + scores.softmax(dim=-1) @ x)


@pytest.mark.parametrize("n", [13, 200])
def test_a_model_with_a_leaking_row_looks_causal(n: int) -> None:
    ids = torch.randint(0, 19, (1, n), generator=torch.Generator().manual_seed(0))
    assert TokenModel.of(Leaking(1, 0), ids).looks_causal


class Translator(nn.Module):
    """An encoder-decoder whose arguments have the names of hand-written models, with angles as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(13, 12), nn.Parameter(torch.randn(20, 12))
        self.encoder = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(12, 3, 20, batch_first=True)
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        source, target = (self.embed(one) + self.positions[: one.shape[1]] for one in (src, tgt))
        future = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
        return self.decoder(target, self.encoder(source), tgt_mask=future) @ self.embed.weight.T


def test_a_pair_is_read_by_the_names_of_its_arguments_or_as_a_tuple() -> None:
    model, source, target = Translator().eval(), torch.tensor([[3, 1, 4, 1, 5, 9]]), torch.tensor([[2, 7, 1, 8]])
    for inputs in (
        (source, target),
        (source, target.tolist()),
        {"src": source, "tgt": target},
        {"input_ids": source, "tgt": target},
    ):
        run = TokenModel.of(model, inputs).base
        assert run.target is not None
        assert torch.equal(run.tokens, source)
        assert torch.equal(run.target, target)
    assert xformer.diagnose(model, (source, target)).ok
    assert torch.equal(
        TokenModel.of(model, (source, target)).copied(torch.float64).module.angles.imag, model.angles.imag.double()
    )


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (b"abc", "An input is a text"),
        ({3, 7}, "An input is a text"),
        (torch.tensor([True, False]), "got torch.bool"),
        ({"input_ids": [[3, 7, 12]], "attention_masks": torch.ones(1, 3)}, "no argument attention_masks; did you mean"),
        (
            {"input_ids": [[3, 7, 12]], "attention_mask": torch.ones(1, 2)},
            r"attention_mask has an entry for each token",
        ),
    ],
)
def test_inputs_that_a_model_would_read_as_others_are_refused(inputs: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        TokenModel.of(FAMILIES["Llama"].make(), inputs)
