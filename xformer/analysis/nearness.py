"""Which tokens' vectors lie nearest each other: numbers beside numbers, characters beside their kind, patches.

Each share is held against the same vectors under shuffled names, so that what is said of it is more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.analysis.geometry import cosine_blocks, evenly

N_SHUFFLES = 999
MOST_COMPARED = 2_048
"""Of more tokens so many, evenly apart, are asked for their nearest one among all."""
BLOCK_BYTES = 16 * 1024**2
"""Memory that one block of shuffles may take."""


@dataclass(frozen=True)
class Nearness:
    """For what share of the tokens the nearest other one is of the kind asked for."""

    share: float
    chance: float
    """The share that shuffled names give on average."""
    most_by_chance: float
    """The highest share that any of `N_SHUFFLES` shuffles gave."""
    n_compared: int
    """For how many tokens that was looked at: `MOST_COMPARED` at most."""

    @property
    def is_above_chance(self) -> bool:
        return self.share > self.most_by_chance


def numbers_in_order(vectors: Float[Tensor, "number d_model"]) -> Nearness:
    """For how many of the numbers the nearest other number, by cosine, is one more or one less."""
    n = len(vectors)
    if n < 2:
        return Nearness(0.0, 0.0, 1.0, n)
    tokens, nearest = _nearest(vectors)
    beside = [(names[:, nearest] - names[:, tokens]).abs() == 1 for names in _names(n)]
    return _against_shuffles(torch.cat(beside))


def kinds_together(vectors: Float[Tensor, "token d_model"], kinds: Mapping[str, Sequence[int]]) -> dict[str, Nearness]:
    """For each kind (its tokens, as rows of `vectors`): for how many of them the nearest other token is of that kind too."""
    n = len(vectors)
    tokens, nearest = _nearest(vectors)
    inside = {kind: torch.zeros(n, dtype=torch.bool) for kind in kinds}
    for kind, rows in kinds.items():
        inside[kind][list(rows)] = True
    shares: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    for names in _names(n):
        for kind, is_one in inside.items():
            of_kind, beside = is_one[names[:, tokens]], is_one[names[:, nearest]]  # [1 + shuffle, compared]
            shares[kind].append((of_kind & beside).sum(dim=1).double() / of_kind.sum(dim=1).clamp(min=1))
    return {kind: _of_shares(torch.cat(found), len(tokens)) for kind, found in shares.items()}


def places_side_by_side(cosine: Float[Tensor, "patch patch"]) -> Nearness:
    """For how many of an image's patches the most alike other place is right beside them: above, below, left or right."""
    n = len(cosine)
    side = math.isqrt(n)
    nearest = cosine.clone().fill_diagonal_(-math.inf).argmax(dim=1)
    beside = []
    for place in _names(n):  # [order, patch]: where it would stand
        other = place[:, nearest]
        beside.append((place // side - other // side).abs() + (place % side - other % side).abs() == 1)
    return _against_shuffles(torch.cat(beside))


def _nearest(vectors: Float[Tensor, "token d_model"]) -> tuple[Int[Tensor, " compared"], Int[Tensor, " compared"]]:
    """Tokens, `MOST_COMPARED` at most, and the nearest other one of each."""
    tokens, nearest = evenly(len(vectors), MOST_COMPARED), []
    for first, block in cosine_blocks(vectors[tokens], vectors):
        row = torch.arange(len(block))
        block[row, tokens[first + row]] = -math.inf
        nearest.append(block.argmax(dim=1))
    return tokens, torch.cat(nearest)


def _names(n: int) -> Iterator[Int[Tensor, "order token"]]:
    """The names of the tokens, as they are and then shuffled `N_SHUFFLES` times, in blocks of `BLOCK_BYTES`."""
    yield torch.arange(n)[None]
    generator, at_once = torch.Generator().manual_seed(0), max(1, BLOCK_BYTES // (32 * n))
    for done in range(0, N_SHUFFLES, at_once):
        yield torch.rand(min(at_once, N_SHUFFLES - done), n, generator=generator).argsort(dim=-1)


def _against_shuffles(is_so: Bool[Tensor, "order compared"]) -> Nearness:
    """The first row is what is, the others are what chance makes of it."""
    return _of_shares(is_so.double().mean(dim=1), is_so.shape[1])


def _of_shares(shares: Float[Tensor, " order"], n_compared: int) -> Nearness:
    return Nearness(shares[0].item(), shares[1:].mean().item(), shares[1:].max().item(), n_compared)
