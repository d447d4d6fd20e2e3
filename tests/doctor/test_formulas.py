"""The formulas that are read from the operations of attention written in several styles, right and with planted changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.doctor.checking import TOKENS, decoder
from xformer.doctor.formulas import CAUSES_OF_FORMULAS, formulas
from xformer.doctor.token_model import TokenModel
from xformer.errors import InputError
from xformer.testing import assert_usual_attention

SHIPPED = Path(__file__).parents[2] / "checkpoints"

D, H, D_HEAD = 24, 3, 8


def future(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class Reader(nn.Module):
    """A decoder of two layers with any attention."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.out = nn.Embedding(64, D), nn.Embedding(64, D), nn.Linear(D, 64)
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for attention, norm in zip(self.attentions, self.norms, strict=True):
            x = x + attention(norm(x))
        return self.out(x)


class Separate(nn.Module):
    """Three projections; heads first."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.scaled = how.get("scaled", lambda scores: scores / math.sqrt(D_HEAD))
        self.before = how.get("before", lambda x: x)  # queries and keys, before the product
        self.projected = how.get("projected", lambda x: (self.q(x), self.k(x), self.v(x)))
        self.split = how.get("split", lambda y: y.view(*y.shape[:2], H, D_HEAD).transpose(1, 2))
        self.merged = how.get("merged", lambda z: z.transpose(1, 2).flatten(2))
        self.masked = how.get("masked", lambda scores: scores.masked_fill(future(scores.shape[-1]), -math.inf))
        self.softmax = how.get("softmax", lambda scores: scores.softmax(dim=-1))
        self.added = 0.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.split, self.projected(x))
        scores = self.scaled(self.before(q) @ self.before(k).transpose(-2, -1)) + self.added
        return self.o(self.merged(self.softmax(self.masked(scores)) @ v))


class Shared(Separate):
    """Projections that are used twice."""

    def __init__(self, which: str) -> None:
        super().__init__()
        parts = {one: getattr(self, one) for one in "qkv"}
        self.projected = lambda x: tuple(parts[one](x) for one in which)


class Fused(nn.Module):
    """One projection that is split, and einsum over heads in the middle."""

    def __init__(self, factor: float = D_HEAD**-0.5, slices: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        self.qkv, self.o, self.factor, self.slices = nn.Linear(D, 3 * D), nn.Linear(D, D), factor, slices

    def parts(self, x: Tensor) -> list[Tensor]:
        return [self.qkv(x).chunk(3, dim=-1)[i] for i in self.slices]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (H, D_HEAD)) for part in self.parts(x))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.factor
        scores = scores + torch.full((x.shape[1], x.shape[1]), -1e9).triu(1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores, dim=-1), v).flatten(2))


class Once(Fused):
    """One projection that is computed once, and one of its slices is used twice."""

    def parts(self, x: Tensor) -> list[Tensor]:
        every = self.qkv(x).view(*x.shape[:2], 3, D).permute(2, 0, 1, 3)
        return [every[i] for i in self.slices]


class Sliced(Fused):
    """Slices of one weight."""

    def parts(self, x: Tensor) -> list[Tensor]:
        return [F.linear(x, self.qkv.weight[i * D : (i + 1) * D]) for i in self.slices]


class HeadsLast(Fused):
    """A fused function without the transpose before it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (H, D_HEAD)) for part in self.parts(x))
        return self.o(F.scaled_dot_product_attention(q, k, v).flatten(2))


class Masked(Fused):
    """A fused function that adds its mask."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (H, D_HEAD)).transpose(1, 2) for part in self.parts(x))
        mask = torch.ones(x.shape[1], x.shape[1]).tril()
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Kernel(Fused):
    """A fused function."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, H, D_HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.factor)
        return self.o(z.transpose(1, 2).flatten(2))


class OneHead(nn.Module):
    """A head as a module of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, D_HEAD, bias=False) for _ in range(3))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(x) @ self.key(x).transpose(-2, -1) * self.width**-0.5
        weights = weights.masked_fill(future(x.shape[1]), float("-inf"))
        return F.softmax(weights, dim=-1) @ self.value(x)


class ByHead(nn.Module):
    def __init__(self, width: int = D_HEAD) -> None:
        super().__init__()
        self.heads, self.o = nn.ModuleList(OneHead(width) for _ in range(H)), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.cat([head(x) for head in self.heads], dim=-1))


class Multi(nn.Module):
    """The module of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=future(x.shape[1]), need_weights=False)[0]


def rotated(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 1e4 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotated_as_complex(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 1e4 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


LINEAR_BIAS = (
    -(torch.arange(16)[:, None] - torch.arange(16)).clamp(min=0) * torch.tensor([1 / 16, 1 / 256, 1 / 4])[:, None, None]
)


class Biased(Separate):
    """Linear biases (ALiBi) beside the scores."""

    def forward(self, x: Tensor) -> Tensor:
        self.added = LINEAR_BIAS[:, : x.shape[1], : x.shape[1]]
        return super().forward(x)


def same(x: Tensor) -> Tensor:
    return x


USUAL: dict[str, Callable[[], nn.Module]] = {
    "separate": Separate,
    "fused": Fused,
    "kernel": Kernel,
    "by head": ByHead,
    "multi": Multi,
    "biased": Biased,
    "in place": lambda: Separate(scaled=lambda scores: scores.div_(D_HEAD**0.5)),
    "a tensor": lambda: Separate(scaled=lambda scores: scores / torch.sqrt(torch.tensor(8.0))),
    "rotary, before": lambda: Separate(scaled=same, before=lambda x: rotated(x / D_HEAD**0.25)),
    "rotary, after": lambda: Separate(before=rotated),
    "complex rotary": lambda: Separate(before=rotated_as_complex),
    "softcap": lambda: Separate(scaled=lambda scores: torch.tanh(scores / D_HEAD**0.5 / 30) * 30),
    "learned": lambda: Separate(scaled=same, before=lambda x: F.normalize(x, dim=-1)),
}
CHANGED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "none": ("scale_missing", lambda: Separate(scaled=same)),
    "none, rotary": ("scale_missing", lambda: Separate(scaled=same, before=rotated_as_complex)),
    "none, biased": ("scale_missing", lambda: Biased(scaled=same)),
    "none, kernel": ("scale_missing", lambda: Kernel(1.0)),
    "d_model": ("scale_by_d_model", lambda: Separate(scaled=lambda scores: scores / math.sqrt(D))),
    "d_model, fused": ("scale_by_d_model", lambda: Fused(D**-0.5)),
    "d_model, by head": ("scale_by_d_model", lambda: ByHead(D)),
    "d_model, a tensor": ("scale_by_d_model", lambda: Separate(scaled=lambda s: s / torch.sqrt(torch.tensor(24.0)))),
    "d_model, before": ("scale_by_d_model", lambda: Separate(scaled=same, before=lambda x: rotated(x * D**-0.25))),
    "heads": ("scale_by_n_heads", lambda: Separate(scaled=lambda scores: scores / H**0.5)),
    "inverted": ("scale_inverted", lambda: Separate(scaled=lambda scores: scores * D_HEAD**0.5)),
    "inverted, kernel": ("scale_inverted", lambda: Kernel(D_HEAD**0.5)),
    "d_head": ("scale_by_d_head", lambda: Separate(scaled=lambda scores: scores / D_HEAD)),
    "both sides": ("scale_by_d_head", lambda: Separate(scaled=same, before=lambda x: x / D_HEAD**0.5)),
    "0.3": ("scale_other", lambda: Fused(0.3)),
    "q and k": ("shared_projection", lambda: Shared("qqv")),
    "k and v": ("shared_projection", lambda: Shared("qkk")),
    "all": ("shared_projection", lambda: Shared("qqq")),
    "every third": (
        "heads_interleaved",
        lambda: Separate(split=lambda y: y.view(len(y), -1, D_HEAD, H).permute(0, 3, 1, 2)),
    ),
    "a slice, twice": ("shared_projection", lambda: Once(slices=(0, 1, 1))),
    "a slice of a weight, twice": ("shared_projection", lambda: Sliced(slices=(0, 0, 1))),
    "kept mean": (
        "heads_averaged",
        lambda: Separate(merged=lambda z: z.mean(1, True).expand_as(z).transpose(1, 2).flatten(2)),
    ),
    "heads last, kernel": ("attention_over_heads", lambda: HeadsLast()),
    "mean": ("heads_averaged", lambda: Separate(merged=lambda z: z.mean(dim=1).repeat(1, 1, H))),
    "sum": ("heads_averaged", lambda: Separate(merged=lambda z: z.sum(1).repeat(1, 1, H))),
}


def shown(n: int, diagonal: int) -> Tensor:
    return torch.ones(n, n).tril(diagonal)


def too_late(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1) * shown(scores.shape[-1], 0)


MASKS: dict[str, tuple[str, str, Callable[[], nn.Module]]] = {
    "none": ("mask_not_applied", "every key", lambda: Separate(masked=same)),
    "kernel": ("mask_not_applied", "every key", lambda: Open()),
    "1 more": (
        "mask_off_by_one",
        "keys ≤ query + 1",
        lambda: Separate(masked=lambda s: s.masked_fill(shown(len(s[0, 0]), 1) == 0, -1e9)),
    ),
    "inverted": (
        "mask_inverted",
        "keys > query",
        lambda: Separate(masked=lambda s: s.masked_fill(shown(len(s[0, 0]), 0) == 1, -1e9)),
    ),
    "added": ("mask_added_as_bool", "scores + mask", lambda: Separate(masked=lambda s: s + future(len(s[0, 0])))),
    "added, kernel": ("mask_added_as_bool", "scores + mask", Masked),
    "multiplied": ("mask_multiplied", "scores · mask", lambda: Separate(masked=lambda s: s * shown(len(s[0, 0]), 0))),
    "weak": ("mask_too_small", "-2 at masked scores", lambda: Separate(masked=lambda s: s - 2 * future(len(s[0, 0])))),
    "not used": ("mask_not_applied", "every key", lambda: Separate(masked=not_kept)),
    "queries": ("softmax_over_queries", "softmax over the queries", lambda: Separate(softmax=lambda s: s.softmax(-2))),
    "merged": (
        "merge_without_transpose",
        "mixes positions",
        lambda: Separate(merged=lambda z: z.reshape(len(z), -1, D)),
    ),
    "wrongly": (
        "merge_without_transpose",
        "mixes positions",
        lambda: Separate(merged=lambda z: z.mT.reshape(len(z), -1, D)),
    ),
    "split": (
        "split_without_transpose",
        "mixes positions",
        lambda: Separate(split=lambda y: y.view(len(y), H, -1, D_HEAD)),
    ),
    "split, kernel": ("split_without_transpose", "mixes positions", lambda: Mixed()),
}
"""What breaks causality: the cause, what the code computes, and the attention."""


def not_kept(scores: Tensor) -> Tensor:
    scores.masked_fill(future(len(scores[0, 0])), -math.inf)
    return scores


class Open(Fused):
    """A fused function without a mask."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (H, D_HEAD)).transpose(1, 2) for part in self.qkv(x).split(D, dim=-1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mixed(Fused):
    """A fused function whose heads are split without a transpose."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(len(x), H, -1, D_HEAD) for part in self.qkv(x).chunk(3, dim=-1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("fault", MASKS)
def test_fault_of_a_formula_is_the_cause_of_what_causality_finds(fault: str) -> None:
    cause, rule, make = MASKS[fault]
    diagnosis = xformer.diagnose(Reader(make), TOKENS, checks=["causality", "formula"], causal=True)
    formula, causality = diagnosis.broken
    assert (formula.check, causality.check) == ("formula", "causality")
    assert formula.cause == causality.cause == cause
    assert formula.line == causality.line
    assert formula.line.startswith("test_formulas.py:")
    assert rule in formula.sentence
    assert f"It follows from {cause} ({formula.line})." in repr(diagnosis)
    if fault not in ("none", "kernel", "queries", "merged", "wrongly"):  # a triangle in the code is an intention
        assert xformer.diagnose(Reader(make), TOKENS, checks=["causality"]).broken


def test_mask_after_the_softmax_is_the_cause_of_rows_that_do_not_sum_to_1() -> None:
    diagnosis = xformer.diagnose(Reader(lambda: Separate(masked=same, softmax=too_late)), TOKENS, causal=True)
    assert [one.cause for one in diagnosis.broken if one.check == "attention_rows"] == ["mask_after_softmax"]


def test_query_that_does_not_see_itself_is_unusual() -> None:
    diagnosis = xformer.diagnose(
        Reader(lambda: Separate(masked=lambda s: s.masked_fill(shown(len(s[0, 0]), -1) == 0, -1e9))),
        TOKENS,
        causal=True,
    )
    assert [one.cause for one in diagnosis.unusual] == ["mask_excludes_itself"]
    window = Separate(masked=lambda s: s.masked_fill((shown(len(s[0, 0]), 0) - shown(len(s[0, 0]), -3)) == 0, -1e9))
    masks = [one for one in read(Reader(lambda: window)) if one.part == "mask"]
    assert {(one.formula, one.cause) for one in masks} == {("query − 3 < keys ≤ query", "")}


def read(model: nn.Module) -> list[xformer.doctor.formulas.Formula]:
    opened = TokenModel.of(model.eval(), TOKENS)
    return formulas(opened, opened.base)


@pytest.mark.parametrize("style", USUAL)
def test_usual_attention_has_no_cause(style: str) -> None:
    found = read(Reader(USUAL[style]))
    assert {one.cause for one in found} == {""}, found
    scales = [(one.layer, one.formula) for one in found if one.part == "scale"]
    if style != "learned":  # after a norm, 1 / √d_head is not what the code says
        assert scales == [(0, "q·kᵀ / √8"), (1, "q·kᵀ / √8")]


@pytest.mark.parametrize("change", CHANGED)
def test_change_is_named_at_its_line(change: str) -> None:
    cause, make = CHANGED[change]
    found = [one for one in read(Reader(make)) if one.cause]
    assert [(one.layer, one.cause) for one in found] == [(0, cause), (1, cause)], found
    assert all(one.line.startswith("test_formulas.py:") for one in found)
    assert cause in CAUSES_OF_FORMULAS
    word = {"shared_projection": "", "heads_averaged": change.removeprefix("kept ")}.get(cause, "")
    assert word in found[0].text


def test_unusual_formula_is_broken_only_against_a_specification() -> None:
    model = Reader(CHANGED["d_model"][1]).eval()
    diagnosis = xformer.diagnose(model, TOKENS)
    [row] = diagnosis.table[diagnosis.table["verdict"] == "unusual"].to_dict("records")
    assert (row["check"], row["cause"]) == ("formula", "scale_by_d_model")
    assert row["line"].startswith("test_formulas.py:")
    assert diagnosis.ok
    assert "unusual: In layers 0, 1, the scores are divided by √d_model" in repr(diagnosis)
    assert list(diagnosis.formulas["part"]) == [
        "positions",
        *["scale", "mask", "softmax", "projections", "heads"] * 2,
        *["norm", "residual"] * 2,
    ]

    strict = xformer.diagnose(model, TOKENS, checks=["formula"], spec="gpt")
    assert [one.cause for one in strict.broken] == ["scale_by_d_model"]
    assert "The scores should be q·kᵀ / √8 in `" in strict.broken[0].remedy
    assert xformer.diagnose(Reader(Separate).eval(), TOKENS, checks=["formula"], spec="gpt").ok


def sinusoids(power: Tensor, *, base: float = 10_000.0, halves: bool = False) -> Tensor:
    angle = torch.arange(64.0)[:, None] / base**power
    return torch.cat([angle.sin(), angle.cos()], 1) if halves else torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


class Sinusoidal(Reader):
    """A decoder with a table of positions that is not learned."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(Separate)
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.table[: ids.shape[1]]
        for attention, norm in zip(self.attentions, self.norms, strict=True):
            x = x + attention(norm(x))
        return self.out(x)


PAIRS = torch.arange(0, D, 2.0) / D


@pytest.mark.parametrize(
    ("table", "formula", "cause"),
    [
        (sinusoids(PAIRS), "pos / 10000^(2i/d)", ""),
        (sinusoids(PAIRS, halves=True), "pos / 10000^(2i/d)", ""),
        (sinusoids(torch.arange(D / 2) / (D / 2 - 1), halves=True), "pos / 10000^(2i/d)", ""),  # of Tensor2Tensor
        (sinusoids(PAIRS, base=500.0), "pos / 500^(2i/d)", ""),
        (sinusoids(2 * PAIRS), "pos / 10000^(4i/d)", "sinusoid_exponent"),
        (sinusoids(PAIRS / 2, halves=True), "pos / 100^(2i/d)", ""),
    ],
)
def test_sinusoids_are_recovered_from_their_values(table: Tensor, formula: str, cause: str) -> None:
    [found] = [one for one in read(Sinusoidal(table)) if one.part == "positions"]
    assert (found.formula, found.cause) == (f"sin and cos of {formula}", cause)
    assert found.text == "x = self.tokens(ids) + self.table[: ids.shape[1]]"


@pytest.mark.parametrize(
    "table", [torch.rand(64, D), sinusoids(torch.rand(D // 2)), torch.zeros(64, D), torch.ones(64, D)]
)
def test_other_tables_are_not_called_sinusoids(table: Tensor) -> None:
    assert not [one for one in read(Sinusoidal(table)) if "sin" in one.formula]


def test_assertion_raises_for_an_unusual_formula() -> None:
    assert_usual_attention(Reader(Separate).eval(), TOKENS)
    with pytest.raises(AssertionError, match=r"divided by √d_model.*q·kᵀ / √24 \(test_formulas.py:"):
        assert_usual_attention(Reader(CHANGED["d_model"][1]).eval(), TOKENS)


def test_unknown_specification_is_an_error() -> None:
    with pytest.raises(InputError, match="one of vaswani, gpt, bert, llama; got 'gpt5'"):
        xformer.diagnose(Reader(Separate).eval(), TOKENS, spec="gpt5")


def test_own_models_and_released_families_are_read_as_what_they_are() -> None:
    assert {one.cause for one in read(decoder())} == {""}
    for family, causes in {"GPT-2": {""}, "Llama": {""}, "BERT": {""}, "T5": {"scale_missing", ""}}.items():
        found = read(FAMILIES[family].make())
        assert found, family
        assert {one.cause for one in found} == causes, family


@pytest.mark.parametrize("weights", sorted(SHIPPED.glob("*/model.safetensors")), ids=lambda one: one.parent.name)
def test_nothing_is_unusual_in_a_shipped_model(weights: Path) -> None:
    diagnosis = xformer.diagnose(str(weights.parent), checks=["formula"])
    assert diagnosis.ok
    assert not diagnosis.unusual
