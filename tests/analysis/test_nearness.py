"""Tokens beside their like: what is in order is found, what is shuffled or random is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xformer.analysis.geometry import cosine_matrix
from xformer.analysis.nearness import kinds_together, numbers_in_order, places_side_by_side


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
