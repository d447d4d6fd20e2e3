"""The formulas of blocks and positions, read from models in several styles, right and with planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.doctor.checking import TOKENS
from xformer.doctor.check import CheckContext
from xformer.doctor.formulas import BREAKS_A_RULE, CAUSES_OF_FORMULAS, Formula
from xformer.doctor.token_model import TokenModel

D, H, D_HEAD = 32, 2, 16
LEARNED = "one learned vector for each position"


def read(model: nn.Module) -> list[Formula]:
    return [*CheckContext(TokenModel.of(model.eval(), TOKENS, causal=True)).formulas]


def said(model: nn.Module, *parts: str) -> set[str]:
    return {one.formula for one in read(model) if one.part in parts}


def same(x: Tensor) -> Tensor:
    return x


def turned(x: Tensor, *, tables: str = "halves", pairs: str = "halves", width: int = D_HEAD, first: int = 0) -> Tensor:
    """Rotate pairs of dimensions, with cos and sin repeated for the same or other pairs."""
    x, rest = x[..., :width], x[..., width:]
    angle = (first + torch.arange(x.shape[-2]))[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
    angle = angle.repeat(1, 2) if tables == "halves" else angle.repeat_interleave(2, dim=1)
    one, two = x.chunk(2, dim=-1)
    other = torch.cat([-two, one], dim=-1)
    if pairs == "neighbours":
        other = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return torch.cat([x * angle.cos() + other * angle.sin(), rest], dim=-1)


def turned_as_complex(x: Tensor) -> Tensor:
    angle = torch.outer(torch.arange(x.shape[-2]), 5e5 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD))
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class RMS(nn.Module):
    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.weight, self.dim = nn.Parameter(torch.ones(D)), dim

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(dim=self.dim, keepdim=True) + 1e-6) * self.weight


class Written(RMS):
    """A layer norm with the corrected standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(dim=self.dim, keepdim=True), x.std(dim=self.dim, keepdim=True)
        return self.weight * (x - mean) / (std + 1e-6)


class Turned(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(
        self, q: Any = same, k: Any = same, v: Any = same, *, bias: Tensor | None = None, p: float = 0.0, is_causal: bool = True
    ) -> None:  # fmt: skip
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.turn, self.bias, self.p, self.is_causal = (q, k, v), bias, p, is_causal

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        parts = (part.unflatten(2, (H, D_HEAD)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (turn(part) for turn, part in zip(self.turn, parts, strict=True))
        scores = q @ k.transpose(-2, -1) / math.sqrt(D_HEAD)
        if self.bias is not None:
            scores = scores + self.bias[:, :n, :n]
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        weights = scores.softmax(dim=-1)
        return F.dropout(self.o((weights @ v).transpose(1, 2).flatten(2)), self.p)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(D, 48), nn.Linear(48, D), nn.Linear(D, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


Arranged = Callable[["Block", Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, arranged: Arranged, norm: Any, attention: Any, network: Any) -> None:
        super().__init__()
        self.n1, self.n2, self.attend, self.feed, self.arranged = norm(), norm(), attention(), network(), arranged

    def forward(self, x: Tensor) -> Tensor:
        return self.arranged(self, x)


def network(between: Any = nn.GELU) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(D, 48), between(), nn.Linear(48, D))


class GPT(nn.Module):
    """Blocks as modules."""

    def __init__(
        self, arranged: Arranged | None = None, *, norm: Any = lambda: nn.LayerNorm(D), attention: Any = Attention,
        feed: Any = None, add: Any = None, final: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.out = nn.Embedding(64, D), nn.Embedding(64, D), nn.Linear(D, 64)
        self.blocks = nn.ModuleList(Block(arranged or pre, norm, attention, feed or network()) for _ in range(2))
        self.add = add or (lambda model, x: x + model.positions(torch.arange(x.shape[1])))
        self.final = norm() if final else nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.add(self, self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        return self.out(self.final(x))


class Functional(nn.Module):
    """One function without modules, einsum and raw weights."""

    def __init__(self, arranged: str = "pre", dim: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = {"e": (64, D), "p": (64, D), "q": (H, D, D_HEAD), "k": (H, D, D_HEAD), "v": (H, D, D_HEAD)}
        shapes |= {"o": (H, D_HEAD, D), "w1": (D, 40), "w2": (40, D), "u": (D, 64)}
        self.w = nn.ParameterDict({name: nn.Parameter(torch.randn(shape) / 5) for name, shape in shapes.items()})
        self.arranged, self.dim = arranged, dim

    def norm(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=self.dim, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(dim=self.dim, keepdim=True) + 1e-5)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hde->bhte", x, self.w[name]) for name in "qkv")
        scores = torch.einsum("bhqe,bhke->bhqk", q, k) / D_HEAD**0.5
        scores = scores + torch.full(scores.shape[-2:], -1e9).triu(1)
        z = torch.einsum("bhqk,bhke->bhqe", scores.softmax(dim=-1), v)
        return torch.einsum("bhqe,hed->bqd", z, self.w["o"])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.w["e"][ids] + self.w["p"][: ids.shape[1]]
        for _ in range(2):
            for f in (self.attend, lambda x: F.relu(x @ self.w["w1"]) @ self.w["w2"]):
                if self.arranged == "pre":
                    x = x + f(self.norm(x))
                elif self.arranged == "post":
                    x = self.norm(x + f(x))
                elif f == self.attend:
                    x = f(self.norm(x))  # nothing is added
                else:
                    x = x + f(self.norm(x))
        return x @ self.w["u"]


class Torch(nn.Module):
    """The layers of PyTorch."""

    def __init__(self, *, first: bool, activation: Any = "relu") -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, H, 48, batch_first=True, norm_first=first, activation=activation)
        self.tokens, self.out = nn.Embedding(64, D), nn.Linear(D, 64)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.layers(self.tokens(ids), mask=mask, is_causal=True))


def pre(self: Block, x: Tensor) -> Tensor:
    x = x + self.attend(self.n1(x))
    return x + self.feed(self.n2(x))


def post(self: Block, x: Tensor) -> Tensor:
    x = self.n1(x + self.attend(x))
    return self.n2(x + self.feed(x))


def parallel(self: Block, x: Tensor) -> Tensor:
    h = self.n1(x)
    return x + self.attend(h) + self.feed(h)


def scaled(self: Block, x: Tensor) -> Tensor:
    x = self.n1(1.5 * x + self.attend(x))  # DeepNorm
    return self.n2(1.5 * x + self.feed(x))


def sandwich(self: Block, x: Tensor) -> Tensor:
    x = x + self.n1(self.attend(x))
    return x + self.n2(self.feed(x))


def rezero(self: Block, x: Tensor) -> Tensor:
    x = x + 0.3 * self.attend(x)
    x += 0.3 * self.feed(x)
    return x


def no_sum(self: Block, x: Tensor) -> Tensor:
    x = self.attend(self.n1(x))
    return x + self.feed(self.n2(x))


def no_sum_after(self: Block, x: Tensor) -> Tensor:
    x = self.n1(x + self.attend(x))
    x = self.feed(x)
    return self.n2(x)


def earlier(self: Block, x: Tensor) -> Tensor:
    h = x + self.attend(self.n1(x))
    return x + self.feed(self.n2(h))


def normed(self: Block, x: Tensor) -> Tensor:
    x = self.n1(x)
    x = x + self.attend(x)
    return x + self.feed(self.n2(x))


def normed_twice(self: Block, x: Tensor) -> Tensor:
    x = self.n1(x)
    x = x + self.attend(x)
    x = self.n2(x)
    return x + self.feed(x)


def normed_network(self: Block, x: Tensor) -> Tensor:
    x = x + self.attend(self.n1(x))
    x = self.n2(x)
    return x + self.feed(x)


PRE = {"x + attention(norm(x))", "x + feed_forward(norm(x))"}
POST = {"norm(x + attention(x))", "norm(x + feed_forward(x))"}
PLAIN = {"x + attention(x)", "x + feed_forward(x)"}
NORMED = {"x + norm(attention(x))", "x + norm(feed_forward(x))"}


@pytest.mark.parametrize(
    ("make", "residuals", "norms", "networks"),
    [
        (GPT, PRE, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(post), POST, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(post, final=False, norm=Written), POST, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(parallel, norm=RMS), PRE, "RMS norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(norm=RMS, feed=Gated), PRE, "RMS norm", "W₂·(silu(W₁·x) ⊙ W₃·x)"),
        (lambda: GPT(norm=Written), PRE, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(scaled), POST, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(sandwich), NORMED, "layer norm", "W₂·gelu(W₁·x)"),
        (lambda: GPT(rezero), PLAIN, "", "W₂·gelu(W₁·x)"),
        (Functional, PRE, "layer norm", "W₂·relu(W₁·x)"),
        (lambda: Functional("post"), POST, "layer norm", "W₂·relu(W₁·x)"),
        (lambda: Torch(first=True), PRE, "layer norm", "W₂·relu(W₁·x)"),
        (lambda: Torch(first=False), POST, "layer norm", "W₂·relu(W₁·x)"),
    ],
)  # fmt: skip
def test_blocks_are_read_as_what_they_are(make: Any, residuals: set[str], norms: str, networks: str) -> None:
    model = make()
    assert {one.cause for one in read(model)} == {""}
    assert said(model, "residual") == residuals
    assert {one.split(" over")[0] for one in said(model, "norm")} == ({norms} if norms else set())
    assert said(model, "feed_forward") == {networks}


def slopes(*each: float) -> Tensor:
    return torch.tensor(each)[:, None, None] * -(torch.arange(16)[:, None] - torch.arange(16))


def sines(model: GPT, x: Tensor) -> Tensor:
    angle = torch.arange(64.0)[:, None] / 1e4 ** (torch.arange(0, D, 2) / D)
    table = torch.stack([angle.sin(), angle.cos()], dim=2).reshape(64, 1, D)  # for [pos, batch, d_model]
    return x + table[: x.shape[0]]


FAULTS: dict[str, tuple[str, str, Callable[[], nn.Module]]] = {
    "attention not added": ("residual_missing", "x = self.attend(self.n1(x))", lambda: GPT(no_sum)),
    "attention not added, functional": ("residual_missing", "x = f(self.norm(x))", lambda: Functional("missing")),
    "network not added": ("residual_missing", "return self.n2(x)", lambda: GPT(no_sum_after)),
    "earlier stream": ("residual_other", "return x + self.feed(self.n2(h))", lambda: GPT(earlier)),
    "normed attention": ("residual_from_norm", "x = x + self.attend(x)", lambda: GPT(normed)),
    "normed twice": ("residual_from_norm", "x = x + self.attend(x)", lambda: GPT(normed_twice, norm=RMS)),
    "normed network": ("residual_from_norm", "return x + self.feed(x)", lambda: GPT(normed_network)),
    "over positions": ("norm_over_positions", "x.pow(2).mean(", lambda: GPT(norm=lambda: RMS(1))),
    "over positions, std": ("norm_over_positions", "x.std(", lambda: GPT(norm=lambda: Written(1))),
    "over positions, functional": ("norm_over_positions", "x.mean(", lambda: Functional(dim=1)),
    "over the batch": ("norm_over_batch", "x.mean(", lambda: Functional(dim=0)),
    "batch norm": ("batch_norm", "super().forward(input", lambda: GPT(norm=lambda: Turned(D))),
    "no activation": ("activation_missing", "self.feed(self.n2(x))", lambda: GPT(feed=network(nn.Identity))),
    "no activation, torch": ("activation_missing", "self.layers(", lambda: Torch(first=True, activation=same)),
    "pairs": ("rotary_pairs_mixed", "angle.repeat", lambda: rotary(lambda x: turned(x, pairs="neighbours"))),
    "pairs, reverse": ("rotary_pairs_mixed", "angle.repeat", lambda: rotary(lambda x: turned(x, tables="neighbours"))),
    "queries only": ("rotary_on_queries_only", "turn(part) for", lambda: rotary(turned, same)),
    "keys only": ("rotary_on_keys_only", "turn(part) for", lambda: rotary(same, turned_as_complex)),
    "values too": ("rotary_on_values", "turn(part) for", lambda: rotary(turned, turned, turned)),
    "slopes": ("alibi_slopes", "self.bias[:, :n, :n]", lambda: biased(0.5, 0.25)),
    "sign": ("alibi_slopes", "self.bias[:, :n, :n]", lambda: biased(-1 / 16, -1 / 256)),
    "batch": ("positions_from_batch", "table[: x.shape[0]]", lambda: GPT(add=sines)),
    "dropout": ("dropout_in_eval", "F.dropout(", lambda: GPT(attention=lambda: Attention(p=0.1))),
}  # fmt: skip


def rotary(q: Any, k: Any = None, v: Any = same) -> GPT:
    return GPT(attention=lambda: Attention(q, k or q, v), add=lambda _, x: x)


def biased(*each: float) -> GPT:
    return GPT(attention=lambda: Attention(bias=slopes(*each)), add=lambda _, x: x)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named_at_its_line(fault: str) -> None:
    cause, text, make = FAULTS[fault]
    found = [one for one in read(make()) if one.cause]
    assert {one.cause for one in found} == {cause}, found
    assert text in found[0].text
    assert found[0].line.startswith("test_block_formulas.py:")
    assert cause in CAUSES_OF_FORMULAS


class Divided(RMS):
    """A norm without the root."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def test_what_is_no_norm_should_be_one() -> None:
    for norm, usual in ((Divided, "a layer or RMS norm over the features"), (RMS, "RMS norm over the features")):
        found = [one for one in read(GPT(norm=norm)) if one.part == "norm"]
        assert {one.usual for one in found} == {usual}
        assert {one.cause for one in found} == ({"norm_formula"} if norm is Divided else {""})


@pytest.mark.parametrize(
    ("fault", "check"),
    [("dropout", "determinism"), ("pairs", "rotary"), ("queries only", "rotary"), ("over positions", "causality"),
     ("batch", "batch"), ("over the batch", "batch")],
)  # fmt: skip
def test_rule_that_breaks_follows_from_the_formula(fault: str, check: str) -> None:
    cause, _, make = FAULTS[fault]
    diagnosis = xformer.diagnose(make().eval(), TOKENS, checks=["formula", check], causal=True)
    assert {one.check: one.cause for one in diagnosis.broken} == {"formula": cause, check: cause}
    assert cause in BREAKS_A_RULE


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (GPT, LEARNED),
        (lambda: GPT(add=lambda model, x: x + model.positions(torch.ones(x.shape[:2]).cumsum(1).long())), LEARNED),
        (lambda: GPT(add=lambda model, x: x + model.positions.weight[2 : 2 + x.shape[1]]), LEARNED),
        (lambda: GPT(add=lambda model, x: x + model.positions(torch.zeros(x.shape[:2]).long())), "none"),
        (lambda: biased(1 / 16, 1 / 256), "scores − slope · (query − key), with the slopes 0.0625, 0.00391"),
        (lambda: rotary(turned), "q and k rotated by pos / 10000^(2i/16), in pairs (i, i + 8)"),
        (lambda: rotary(lambda x: turned(x, first=1)), "q and k rotated by (pos + 1) / 10000^(2i/16), in pairs (i, i + 8)"),
        (lambda: rotary(lambda x: turned(x, width=8)), "q and k rotated by pos / 10000^(2i/8), in pairs (i, i + 4)"),
        (lambda: rotary(turned_as_complex), "q and k rotated by pos / 500000^(2i/16), in pairs (2i, 2i + 1)"),
    ],
)  # fmt: skip
def test_positions_are_stated(make: Any, formula: str) -> None:
    model = make()
    assert {one.cause for one in read(model)} == {""}
    assert said(model, "positions", "bias", "rotary") == {formula}


def test_model_that_sees_every_key_without_positions_is_unusual() -> None:
    def found(**how: Any) -> list[Formula]:
        opened = TokenModel.of(GPT(attention=lambda: Attention(is_causal=False), **how).eval(), TOKENS, causal=False)
        return [one for one in CheckContext(opened).formulas if one.part == "positions"]

    assert [one.cause for one in found(add=lambda _, x: x)] == ["positions_missing"]
    assert [one.cause for one in found()] == [""]


@pytest.mark.parametrize(
    ("spec", "make", "causes"),
    [
        ("gpt", GPT, set()),
        ("bert", lambda: GPT(post), set()),
        ("llama", lambda: GPT(norm=RMS, attention=lambda: Attention(turned, turned), add=lambda _, x: x), set()),
        ("gpt", lambda: GPT(post), {"norm_place"}),
        ("bert", GPT, {"norm_place"}),
        ("vaswani", lambda: GPT(post), {"positions_other"}),
        ("llama", GPT, {"norm_kind", "positions_other"}),
        ("gpt", lambda: GPT(add=lambda _, x: x), {"positions_missing"}),
    ],
)  # fmt: skip
def test_differences_from_a_specification_are_broken(spec: str, make: Any, causes: set[str]) -> None:
    diagnosis = xformer.diagnose(make().eval(), TOKENS, checks=["formula"], spec=spec, causal=True)
    assert {*diagnosis.formulas["cause"]} - {""} == causes
    assert bool(diagnosis.broken) == bool(causes)


@pytest.mark.parametrize(
    ("family", "residuals", "norm"),
    [("GPT-2", PRE, "layer norm"), ("BERT", POST, "layer norm"), ("T5", PRE, "RMS norm"), ("GPT-J", PRE, "layer norm"),
     ("Qwen3", PRE, "RMS norm"), ("ALBERT", POST, "layer norm"), ("BART", POST, "layer norm"), ("Falcon", PRE, "layer norm")],
)  # fmt: skip
def test_released_families_are_read_as_what_they_are(family: str, residuals: set[str], norm: str) -> None:
    model = FAMILIES[family].make()
    assert said(model, "residual") == residuals
    assert {one.split(" over")[0] for one in said(model, "norm")} == {norm}
