"""Reshapes of attention that keep positions apart, in styles that look alike, and those that mix them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.test_formulas import D_HEAD, D, H, Reader, future


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(future(scores.shape[-1]), -math.inf).softmax(dim=-1) @ v


class Attention(nn.Module):
    """An attention whose heads are split, mixed and merged by a function of x and its projections."""

    def __init__(self, compute: Callable[[Attention, Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.narrow, self.joined, self.wide = nn.Linear(D, D_HEAD), nn.Linear(2 * D, D), nn.Linear(D, 2 * D)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)

    def heads(self, split: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return attended(*(split(project(x)) for project in (self.q, self.k, self.v)))


def chunked(of: Attention, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    x = F.pad(x, (0, 0, 0, -t % 4))
    z = of.heads(lambda y: y.view(b, -1, 4, H, D_HEAD).transpose(2, 3), x)
    return of.o(z.transpose(2, 3).reshape(b, -1, D)[:, :t])


def sequence_first(of: Attention, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    z = of.heads(lambda y: y.contiguous().view(t, b * H, D_HEAD).transpose(0, 1), x.transpose(0, 1))
    return of.o(z.transpose(0, 1).reshape(t, b, D)).transpose(0, 1)


def heads_as_queries(of: Attention, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    scores = (of.q(x).view(b, t * H, D_HEAD) @ of.narrow(x).mT / D_HEAD**0.5).view(b, t, H, t)
    weights = scores.masked_fill(future(t)[:, None], -math.inf).softmax(dim=-1)
    return of.o((weights.view(b, t * H, t) @ of.narrow(x)).view(b, t, D))


def neighbours_joined(of: Attention, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    y = of.joined(F.pad(x, (0, 0, 0, t % 2)).reshape(b, -1, 2 * D))
    z = of.heads(lambda y: y.unflatten(2, (H, D_HEAD)).transpose(1, 2), y).transpose(1, 2).flatten(2)
    return of.wide(z).reshape(b, -1, D)[:, :t]


def shifted(of: Attention, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    q, k, v = (project(x).unflatten(2, (H, D_HEAD)).transpose(1, 2) for project in (of.q, of.k, of.v))
    far = F.pad(q @ torch.ones(t, D_HEAD).T, (1, 0)).reshape(b, H, t + 1, t)[:, :, 1:]  # Huang et al. 2019, section 3.4
    scores = ((q @ k.mT + far) / D_HEAD**0.5).masked_fill(future(t), -math.inf)
    return of.o((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def channels_first(of: Attention, x: Tensor) -> Tensor:
    z = of.heads(lambda y: y.mT.reshape(len(x), H, D_HEAD, -1).mT, x)
    return of.o(z.mT.reshape(len(x), D, -1).mT)


def batch_first(of: Attention, x: Tensor) -> Tensor:  # as if it were sequence first
    b, t, _ = x.shape
    z = of.heads(lambda y: y.view(t, b * H, D_HEAD).transpose(0, 1), x)
    return of.o(z.transpose(0, 1).reshape(b, t, D))


def not_moved(of: Attention, x: Tensor) -> Tensor:
    q, k, v = (project(x).unflatten(2, (H, D_HEAD)) for project in (of.q, of.k, of.v))
    return of.o(((q @ k.mT / D_HEAD**0.5).softmax(dim=-1) @ v).flatten(2))


def hides_itself(of: Attention, x: Tensor) -> Tensor:  # NaN, from the first row on
    t = x.shape[1]
    q, k, v = (project(x).unflatten(2, (H, D_HEAD)).transpose(1, 2) for project in (of.q, of.k, of.v))
    scores = (q @ k.mT / D_HEAD**0.5).masked_fill(torch.ones(t, t).triu().bool(), -math.inf)
    return of.o((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def one_head(of: Attention, x: Tensor) -> Tensor:
    q, k, v = (project(x)[..., :D_HEAD].repeat(1, 1, H) for project in (of.q, of.k, of.v))
    q, k, v = (one.unflatten(2, (H, D_HEAD)).transpose(1, 2) for one in (q, k, v))
    return of.o(attended(q, k, v).transpose(1, 2).flatten(2))


RIGHT = (chunked, sequence_first, heads_as_queries, neighbours_joined, shifted, channels_first)
WRONG = {batch_first: "split_without_transpose", not_moved: "attention_over_heads"}


@pytest.mark.parametrize("compute", [*RIGHT, *WRONG], ids=lambda compute: compute.__name__)
def test_only_what_mixes_positions_is_named(compute: Callable[[Attention, Tensor], Tensor]) -> None:
    for n in (
        H,
        2 * H,
        len(TOKENS[0]),
        12,
    ):  # as many positions as heads, as heads of two texts, no common factor, a multiple
        model = Reader(lambda: Attention(compute)).eval()
        diagnosis = xformer.diagnose(model, TOKENS[:, :n], checks=["formula"])
        found = diagnosis.formulas
        causes = set(found.loc[found["part"] == "heads", "cause"]) - {""}
        assert causes == ({WRONG[compute]} if compute in WRONG else set()), diagnosis
        assert diagnosis.ok == (compute is not batch_first)


@pytest.mark.parametrize("compute", [hides_itself, one_head])
def test_values_that_are_not_finite_are_not_compared(compute: Callable[[Attention, Tensor], Tensor]) -> None:
    diagnosis = xformer.diagnose(Reader(lambda: Attention(compute)).eval(), TOKENS)
    found, broken = diagnosis.formulas, {one.check for one in diagnosis.broken}
    causes = set(found.loc[found["part"] == "heads", "cause"]) - {""}
    assert causes == ({"heads_equal"} if compute is one_head else set())
    assert ("finite" in broken) == (compute is hides_itself)
    assert not broken & {"attention_rows", "rotary", "mask_constant", "key_value_groups"}, diagnosis
