"""Faults in attention of any layout are located by layer, head, query and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.doctor.checking import broken_place, decoder
from tests.doctor.llama import llama
from tests.doctor.styles import CachedGPT
from tests.program.odd import ODD
from tests.program.zoo import DH, ZOO, Animal, Base, D, H, Usual, future, heads_second, positions_first, vectors
from xformer.doctor.diagnose import token_model_of
from xformer.doctor.watch import watch

TOKENS = torch.tensor([[5, 14, 12, 1, 7, 10, 3]])
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
STYLES = {
    name: animal
    for name, animal in (ZOO | ODD).items()
    if animal.inputs in (vectors, positions_first) and not animal.refused
}


class Reader(nn.Module):
    """A language model of a causal layer and another attention, which has no mask or has one fault."""

    def __init__(self, attention: nn.Module, *, are_positions_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.place, self.out = nn.Embedding(53, D), nn.Embedding(16, D), nn.Linear(D, 53)
        self.layers = nn.ModuleList([Usual(), attention])
        self.are_positions_first = are_positions_first
        for name, weight in self.named_parameters():  # larger than usual, so that attention is not uniform
            if weight.dim() > 1 and name.startswith("layers"):
                nn.init.normal_(weight, std=0.35)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed(idx) + self.place(torch.arange(idx.shape[1]))
        x = x + self.layers[0](x)
        made: Any = self.layers[1](x.transpose(0, 1) if self.are_positions_first else x)
        made = made[0] if isinstance(made, tuple) else made
        made = made.transpose(0, 1) if self.are_positions_first else made
        n = min(x.shape[1], made.shape[1])  # some return more or fewer vectors
        return self.out(torch.cat([x[:, :n] + made[:, :n], x[:, n:]], dim=1))


def own_weights(model: Reader, animal: Animal, tokens: Tensor) -> Tensor:
    """The weights that the second layer computes itself, [head, query, key]."""
    attention: Any = model.layers[1]
    parts = [part for part in attention.modules() if isinstance(vars(part).get("kept"), list)]
    read: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    for part in parts:
        part.kept.clear()
    with torch.no_grad():
        model(tokens)
        handle.remove()
        kept = list(attention.kept) or [attention.weights(*read)]
    return animal.own(kept)[0][0]


@pytest.mark.parametrize("name", STYLES)
def test_a_missing_mask_is_located_in_its_layer_head_and_cell(name: str) -> None:
    animal, n = STYLES[name], TOKENS.shape[1]
    model = Reader(animal.build(), are_positions_first=animal.inputs is positions_first).eval()
    (finding,) = xformer.diagnose(model, TOKENS, checks=["causality"], causal=True).findings
    own = own_weights(model, animal, TOKENS)
    if finding.verdict == "holds" or own.shape[1:] != (n, n):  # it has a mask, or tokens of its own
        assert finding.verdict in ("holds", "broken"), finding.sentence
        assert own.shape[1:] != (n, n) or float(own.triu(1).max()) < 1e-6
        return
    place = finding.place
    assert place is not None
    layer, head, query, key = place.layer, place.head, place.query, place.key
    assert layer == 1
    assert place.pattern is not None
    assert head is not None
    assert query is not None
    assert key is not None
    own = own_weights(model, animal, torch.tensor([place.labels]))
    torch.testing.assert_close(place.pattern.float(), own[head].float())
    changed = range(query + 1, key + 1)  # the largest weight of an earlier query on a token from the changed one on
    assert any(own[head, query, key] == own[:, :at, at:].max() for at in changed)


class OneCell(Base):
    """Causal but for one head, which sees one token too far; weights in a layout of its own."""

    head = 1

    def __init__(self, scores: str, *, over: int) -> None:
        super().__init__()
        self.scores, self.over = scores, over

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        n = x.shape[1]
        hidden = future(n).expand(H, n, n).clone()
        hidden[self.head] &= torch.ones(n, n).triu(2).bool()
        scores = torch.einsum(f"bhqd,bhkd->{self.scores}", q, k) / DH**0.5
        mask = torch.zeros(1, H, n, n).masked_fill(hidden, -1e9)
        weights = (scores + torch.einsum(f"bhqk->{self.scores}", mask)).softmax(dim=self.over)
        return self.o(torch.einsum(f"{self.scores},bhkd->bqhd", weights, v).flatten(2))


@pytest.mark.parametrize(
    ("scores", "over"), [("bqhk", -1), ("qbkh", 2), ("bhkq", -2), ("kqhb", 0), ("hqkb", 2), ("bhqk", -1)]
)
def test_a_token_seen_too_far_is_located_in_its_head(scores: str, over: int) -> None:
    place = broken_place("causality", Reader(OneCell(scores, over=over)).eval())
    assert (place.layer, place.head, place.cause) == (1, OneCell.head, "mask")
    assert place.query is not None
    assert place.key == place.query + 1


@pytest.mark.parametrize(
    ("scores", "over", "fragment"),
    [("bqhk", 1, "the queries"), ("bqhk", 2, "the heads"), ("bhkq", -1, "the queries"), ("kqbh", 3, "the heads")],
)
def test_a_softmax_over_the_wrong_axis_is_found_in_any_layout(scores: str, over: int, fragment: str) -> None:
    assert broken_place("attention_rows", Reader(OneCell(scores, over=over)).eval(), f"over {fragment}").layer == 1


@pytest.mark.parametrize("build", [decoder, llama, CachedGPT])
def test_attention_to_cached_keys_is_that_of_the_whole_run(build: Callable[[], nn.Module]) -> None:
    model = token_model_of(build(), TOKENS)
    whole, rest = watch(model, model.base), watch(model, replace(model.base, n_cached=3))
    assert len(whole) == len(rest) > 1
    for one, other in zip(whole, rest, strict=True):
        torch.testing.assert_close(other.pattern, one.pattern[:, :, 3:])
        assert one.k is not None
        torch.testing.assert_close(other.k, one.k)


def test_heads_in_modules_of_their_own_are_heads_of_one_layer() -> None:
    model = Reader(ZOO["one module per head"].build())
    heads: Any = model.layers[1].get_submodule("layers.0")
    heads[2].tril.fill_(1.0)
    place = broken_place("causality", model.eval())
    assert (place.layer, place.head, place.cause) == (1, 2, "mask")
