"""How well the estimates of what many parts of a model do agree with what was measured."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

NOTHING = 1e-3
"""A part that moves the measure by less than this does nothing."""
FEWEST = 10
"""No agreement is computed over fewer parts than this."""
TOP = 6
"""Up to so many of the largest estimates are looked at."""
ENOUGH = 0.75
"""The largest estimates must find at least this share of the largest effects."""


def order_to_measure(estimates: Sequence[float]) -> list[int]:
    """The order in which parts are measured: in turn the one with the largest estimate and one at random.

    The random ones show whether the estimates miss something.
    """
    by_size = sorted(range(len(estimates)), key=lambda at: -abs(estimates[at]))
    at_random = random.Random(0).sample(by_size, len(by_size))
    return list(dict.fromkeys(itertools.chain.from_iterable(zip(by_size, at_random, strict=True))))


@dataclass(frozen=True)
class Agreement:
    """How well the estimates rank the parts that were measured."""

    rho: float
    """Spearman's rank correlation."""
    n: int
    """The number of measured parts that do anything, by estimate or measurement."""
    top: int
    """The number of largest estimates that are looked at."""
    found: float
    """What their measured effects add up to, as a share of what the `top` largest effects add up to; signs do not count."""

    @property
    def is_near_chance(self) -> bool:
        """Whether a random order would reach this correlation in one of forty trials (ρ √(n − 1) < 2)."""
        return self.rho * math.sqrt(self.n - 1) < 2

    @property
    def is_poor(self) -> bool:
        """Whether the estimates must not be used to choose parts: near chance, or large effects are missed."""
        return self.is_near_chance or self.found < ENOUGH


def agreement(table: pd.DataFrame) -> Agreement | None:
    """Compare the columns estimated and measured over the rows that are measured.

    Returns:
        None where fewer than `FEWEST` measured parts do anything, or all of them are estimated or measured alike.
    """
    two = table.filter(["estimated", "measured"]).dropna()
    two = two.loc[(two.abs() >= NOTHING).any(axis=1)].reset_index(drop=True)
    if len(two.columns) < 2 or len(two) < FEWEST:
        return None
    rho = float(two.corr("spearman").to_numpy()[0, 1])
    if math.isnan(rho):
        return None
    top, sizes = min(TOP, len(two) // 3), two.abs()
    chosen, largest = (float(sizes.nlargest(top, of)["measured"].sum()) for of in ("estimated", "measured"))
    return Agreement(rho, len(two), top, chosen / largest if largest else 0.0)
