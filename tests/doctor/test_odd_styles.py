"""Correct models in styles that are rarely written: no finding in any of them, and none against themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.test_block_formulas import D_HEAD, GPT, Attention, Block, D, H, network, rezero
from xformer.doctor.diagnose import Diagnosis


class Experts(nn.Module):
    """A router and three experts; `joined` puts their outputs together."""

    def __init__(self, joined: Callable[[Experts, Tensor], Tensor]) -> None:
        super().__init__()
        self.router, self.joined = nn.Linear(D, 3), joined
        self.experts = nn.ModuleList(network()() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self, x)

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.router(x).softmax(dim=-1)
        return weights.max(dim=-1)


def assigned(self: Experts, x: Tensor) -> Tensor:
    (weight, expert), out = self.chosen(x), torch.zeros_like(x)
    for number, net in enumerate(self.experts):
        at = expert == number
        out[at] = net(x[at]) * weight[at].unsqueeze(-1)
    return out


def added(self: Experts, x: Tensor) -> Tensor:
    flat = x.reshape(-1, D)
    weights, experts = self.router(flat).softmax(dim=-1).topk(2, dim=-1)
    out = torch.zeros_like(flat)
    for number, net in enumerate(self.experts):
        row, nth = torch.where(experts == number)
        out.index_add_(0, row, net(flat[row]) * weights[row, nth, None])
    return out.view_as(x)


def scattered(self: Experts, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    (weight, expert), out = self.chosen(flat), torch.zeros_like(flat)
    for number, net in enumerate(self.experts):
        [row] = (expert == number).nonzero(as_tuple=True)
        made = net(flat.index_select(0, row)) * weight[row, None]
        out = out.scatter_add(0, row[:, None].expand(-1, D), made)
    return out.view_as(x)


def in_order(self: Experts, x: Tensor) -> Tensor:
    flat = x.reshape(-1, D)
    weight, expert = self.chosen(flat)
    order, sizes = expert.argsort(stable=True), torch.bincount(expert, minlength=3).tolist()
    parts = zip(self.experts, flat[order].split(sizes), strict=True)
    made = torch.cat([net(part) for net, part in parts])
    return (made[order.argsort()] * weight[:, None]).view_as(x)


def all_of_them(self: Experts, x: Tensor) -> Tensor:
    weights = self.router(x).softmax(dim=-1)
    return (torch.stack([net(x) for net in self.experts], dim=-1) * weights[:, :, None]).sum(dim=-1)


def two_norms(self: Block, x: Tensor) -> Tensor:
    x = x + self.n1(self.attend(self.n1(x)))
    return x + self.n2(self.feed(self.n2(x)))


def summed(self: Block, x: Tensor) -> Tensor:
    return sum([x, self.attend(self.n1(x)), self.feed(self.n2(x))], torch.zeros(()))


def halved(self: Block, x: Tensor) -> Tensor:
    x = x + 0.5 * self.feed(self.n1(x))
    x = x + self.attend(self.n2(x))
    return x + 0.5 * self.feed(self.n1(x))


def twice(self: Block, x: Tensor) -> Tensor:
    for _ in range(2):
        x = self.n1(x + self.attend(x))
        x = self.n2(x + self.feed(x))
    return x


def in_depth(self: Block, x: Tensor) -> Tensor:
    at = torch.arange(0, x.shape[1], 2)
    part = x[:, at]
    made = part + self.attend(self.n1(part))
    made = made + self.feed(self.n2(made))
    return x.index_add(1, at, made - part)


class Gates(Block):
    """ReZero: factors that start at 0."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gate = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate[0] * self.attend(self.n1(x))
        return x + self.gate[1] * self.feed(self.n2(x))


def gated() -> GPT:
    model = GPT()
    model.blocks = nn.ModuleList(Gates(rezero, lambda: nn.LayerNorm(D), Attention, network()) for _ in range(2))
    return model


class Drop(Block):
    """Stochastic depth and dropout, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.5:
            return x
        x = x + F.dropout(self.attend(self.n1(x)), 0.2, self.training)
        return x + F.dropout(self.feed(self.n2(x)), 0.2, self.training)


def dropped() -> GPT:
    model = GPT()
    model.blocks = nn.ModuleList(Drop(rezero, lambda: nn.LayerNorm(D), Attention, network()) for _ in range(2))
    return model.train()


class Relative(nn.Module):
    """Distances are embedded, and multiplied with the queries (Shaw et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o, self.far = (
            nn.Linear(D, D),
            nn.Linear(D, 2 * D),
            nn.Linear(D, D),
            nn.Embedding(128, D_HEAD),
        )

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = (part.unflatten(2, (H, -1)).transpose(1, 2) for part in (self.q(x), *self.kv(x).chunk(2, dim=-1)))
        at = torch.arange(n)
        scores = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, self.far(at[:, None] - at + 64))
        scores = (scores / math.sqrt(D_HEAD)).masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        return self.o((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def relative() -> GPT:
    model = GPT(attention=Relative, add=lambda _, x: x)
    del model.positions
    return model


class OneKey(nn.Module):
    """All heads read the same keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D_HEAD), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        n, (k, v) = x.shape[1], self.kv(x).chunk(2, dim=-1)
        q = self.q(x).unflatten(2, (H, -1)).transpose(1, 2)
        scores = torch.einsum("bhqd,bkd->bhqk", q, k) * D_HEAD**-0.5
        scores = torch.where(torch.ones(n, n).tril() > 0, scores, torch.finfo(scores.dtype).min)
        return self.o(torch.einsum("bhqk,bkd->bqhd", scores.softmax(dim=-1), v).reshape(x.shape))


class ClassToken(GPT):
    """An encoder with a class token before the others; pooled, it has one output."""

    def __init__(self, *, is_pooled: bool) -> None:
        super().__init__(attention=lambda: Attention(is_causal=False))
        self.first, self.is_pooled = nn.Parameter(torch.randn(1, 1, D)), is_pooled

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.tokens(ids)], dim=1)
        x = x + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.final(x)
        return self.out(x[:, 0].tanh()) if self.is_pooled else self.out(x[:, 1:])


class Tied(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * D**0.5 + self.positions(torch.arange(ids.shape[1]))
        first = x
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final(x + first), self.tokens.weight)


def experts(joined: Callable[[Experts, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: GPT(feed=lambda: Experts(joined))


STYLES: dict[str, Callable[[], nn.Module]] = {
    "experts assigned": experts(assigned),
    "experts added": experts(added),
    "experts scattered": experts(scattered),
    "experts in order": experts(in_order),
    "all experts": experts(all_of_them),
    "parallel": lambda: GPT(summed),
    "sandwich": lambda: GPT(two_norms),
    "macaron": lambda: GPT(halved),
    "shared layers": lambda: GPT(twice),
    "mixture of depths": lambda: GPT(in_depth),
    "gates": gated,
    "dropped": dropped,
    "relative": relative,
    "one key": lambda: GPT(attention=OneKey),
    "class token": lambda: ClassToken(is_pooled=False),
    "pooled": lambda: ClassToken(is_pooled=True),
    "tied": Tied,
}


def complaints(diagnosis: Diagnosis) -> list[str]:
    found = (*diagnosis.broken, *diagnosis.could_not_run, *diagnosis.unusual)
    return [f"{one.check}: {one.whole_sentence}" for one in found]


@pytest.mark.parametrize("style", STYLES)
def test_correct_model_has_no_finding(style: str) -> None:
    model = STYLES[style]()
    assert complaints(xformer.diagnose(model, TOKENS)) == []
    against = xformer.diagnose(model, TOKENS, checks=["formula", "reference"], spec=STYLES[style]())
    assert complaints(against) == []
    assert [one.verdict for one in against.findings if one.check == "reference"] == ["holds"]


def test_weights_that_start_at_0_let_no_gradient_through_at_first() -> None:
    [finding] = xformer.diagnose(gated(), TOKENS, checks=["gradients"]).findings
    assert finding.sentence.endswith("get a gradient, once weights that start at 0 have another value.")
    [finding] = xformer.diagnose(GPT(), TOKENS, checks=["gradients"]).findings
    assert finding.sentence.endswith("get a gradient.")


def test_network_that_is_not_added_to_the_stream_is_named_beside_experts() -> None:
    def lost(self: Block, x: Tensor) -> Tensor:
        x = x + self.attend(self.n1(x))
        return self.feed(self.n2(x))

    for feed, causes in ((network(), ["residual_missing"]), (lambda: Experts(assigned), [])):
        found = xformer.diagnose(GPT(lost, feed=feed), TOKENS, checks=["formula"]).unusual
        assert [one.cause for one in found] == causes
