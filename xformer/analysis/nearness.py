"""Which tokens' vectors lie nearest each other: numbers beside numbers, characters beside their kind, patches.

Each share is held against the same vectors under shuffled names, so that what is said of it is more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.analysis.geometry import cosine_matrix

N_SHUFFLES = 999


@dataclass(frozen=True)
class Nearness:
    """For what share of the tokens the nearest other one is of the kind asked for."""

    share: float
    chance: float
    """The share that shuffled names give on average."""
    most_by_chance: float
    """The highest share that any of `N_SHUFFLES` shuffles gave."""

    @property
    def is_above_chance(self) -> bool:
        return self.share > self.most_by_chance


def numbers_in_order(vectors: Float[Tensor, "number d_model"]) -> Nearness:
    """For how many of the numbers the nearest other number, by cosine, is one more or one less."""
    n = len(vectors)
    if n < 2:
        return Nearness(0.0, 0.0, 1.0)
    nearest = _nearest(vectors)
    names = torch.cat((torch.arange(n)[None], _shuffles(n)))  # [1 + shuffle, number]
    beside = (names[:, nearest] - names).abs() == 1
    return _against_shuffles(beside)


def kinds_together(vectors: Float[Tensor, "token d_model"], kinds: Mapping[str, Sequence[int]]) -> dict[str, Nearness]:
    """For each kind (its tokens, as rows of `vectors`): for how many of them the nearest other token is of that kind too."""
    n = len(vectors)
    nearest, names = _nearest(vectors), torch.cat((torch.arange(n)[None], _shuffles(n)))  # [1 + shuffle, token]
    found = {}
    for kind, tokens in kinds.items():
        inside = torch.zeros(n, dtype=torch.bool)
        inside[list(tokens)] = True
        of_kind, beside = inside[names], inside[names[:, nearest]]  # [1 + shuffle, token]
        found[kind] = _against_shuffles(beside.masked_select(of_kind).view(len(names), -1))
    return found


def places_side_by_side(cosine: Float[Tensor, "patch patch"]) -> Nearness:
    """For how many of an image's patches the most alike other place is right beside them: above, below, left or right."""
    n = len(cosine)
    side = math.isqrt(n)
    nearest = cosine.clone().fill_diagonal_(-math.inf).argmax(dim=1)
    place = torch.cat((torch.arange(n)[None], _shuffles(n)))  # [1 + shuffle, patch]: where it would stand
    other = place[:, nearest]
    apart = (place // side - other // side).abs() + (place % side - other % side).abs()
    return _against_shuffles(apart == 1)


def _nearest(vectors: Float[Tensor, "token d_model"]) -> Int[Tensor, " token"]:
    return cosine_matrix(vectors).fill_diagonal_(-math.inf).argmax(dim=1)


def _shuffles(n: int) -> Int[Tensor, "shuffle token"]:
    return torch.rand(N_SHUFFLES, n, generator=torch.Generator().manual_seed(0)).argsort(dim=-1)


def _against_shuffles(is_so: Tensor) -> Nearness:
    """Of [1 + shuffle, token]: the first row is what is, the others are what chance makes of it."""
    shares = is_so.double().mean(dim=1)
    return Nearness(shares[0].item(), shares[1:].mean().item(), shares[1:].max().item())
