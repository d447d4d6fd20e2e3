"""Tokens beside their like: what is in order is found, what is shuffled or random is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.analysis.peak_memory import peak_of
from xformer.analysis import embeddings
from xformer.analysis.embeddings import (
    cosine_matrix,
    kinds_together,
    mean_alikeness,
    numbers_in_order,
    places_side_by_side,
)


def arc(n: int) -> Tensor:
    angle = torch.linspace(0, 2, n, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def random(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_numbers_along_an_arc_are_in_order_and_shuffled_ones_are_not() -> None:
    found = numbers_in_order(arc(11))
    assert found.share == 1.0
    assert found.is_above_chance
    # Chance, counted: over all pairs (number, another number) the share that are one apart.
    assert found.chance == pytest.approx(2 / 11, abs=0.02)
    order = torch.tensor([0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9])  # neighbours along the arc are two apart
    assert not numbers_in_order(arc(11)[order.argsort()]).is_above_chance
    assert not any(numbers_in_order(random(19, 16, seed)).is_above_chance for seed in range(20))
    assert not numbers_in_order(arc(1)).is_above_chance


def test_kinds_that_lie_together_and_kinds_that_do_not() -> None:
    together = torch.cat([random(12, 8, 0) + 9.0, random(12, 8, 1) - 9.0])
    kinds = {"one": list(range(12)), "other": list(range(12, 24))}
    for near in kinds_together(together, kinds).values():
        assert near.share == 1.0
        assert near.is_above_chance
        assert near.chance == pytest.approx(11 / 23, abs=0.03)
    mixed = {"even": list(range(0, 24, 2)), "odd": list(range(1, 24, 2))}
    for near in kinds_together(together, mixed).values():
        assert not near.is_above_chance


def test_places_of_a_map_are_found_and_random_ones_are_not() -> None:
    row, column = (x.flatten().double() for x in torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
    apart = (row[:, None] - row).abs() + (column[:, None] - column).abs()
    found = places_side_by_side(-apart)
    assert (found.share, found.is_above_chance) == (1.0, True)
    assert found.chance == pytest.approx(48 / 240, abs=0.02)  # ordered pairs side by side, of all
    for seed in range(10):
        assert not places_side_by_side(cosine_matrix(random(16, 64, seed))).is_above_chance


def test_the_size_of_a_block_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(40, 6, 3)
    names = torch.rand(999, 40, generator=torch.Generator().manual_seed(0)).argsort(dim=-1)
    nearest = cosine_matrix(x).fill_diagonal_(-2.0).argmax(dim=1)
    by_chance = ((names[:, nearest] - names).abs() == 1).double().mean(dim=1)  # [shuffle]
    even = names % 2 == 0
    kind_by_chance = (even & even[:, nearest]).sum(dim=1) / even.sum(dim=1)
    kinds = {"even": list(range(0, 40, 2))}
    pairs = cosine_matrix(x)[tuple(torch.triu_indices(40, 40, offset=1))].abs().mean().item()
    for block in (1, 2_000, 10**8):
        monkeypatch.setattr(embeddings, "BLOCK_BYTES", block)
        monkeypatch.setattr(embeddings, "BLOCK_BYTES", block)
        found = numbers_in_order(x)
        assert found.share == pytest.approx(((nearest - torch.arange(40)).abs() == 1).double().mean().item())
        assert (found.chance, found.most_by_chance) == pytest.approx((by_chance.mean().item(), by_chance.max().item()))
        assert kinds_together(x, kinds)["even"].chance == pytest.approx(kind_by_chance.mean().item())
        assert mean_alikeness(x)[0] == pytest.approx(pairs)


def test_of_very_many_tokens_some_are_compared_in_little_memory() -> None:
    found = numbers_in_order(random(3_000, 4, 0))
    assert found.n_compared == embeddings.MOST_COMPARED
    assert not found.is_above_chance
    assert numbers_in_order(arc(3_000)).share == 1.0
    before = "x = torch.randn(20_000, 16)"
    assert peak_of("nearness.numbers_in_order(x)", before) < 100 * 1024**2  # 3.2 GB as a matrix
    assert peak_of("geometry.mean_alikeness(x)", before) < 64 * 1024**2
