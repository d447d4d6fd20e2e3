"""The agreement of estimates with measurements, and where it is too weak to tell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from xformer.analysis.ablation import NOTHING, agreement, order_to_measure


def table(estimated: list[float], measured: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"estimated": estimated, "measured": measured})


def test_the_rank_correlation_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    measured = random.normal(size=40)
    estimated = measured + random.normal(size=40)
    found = agreement(table(estimated.tolist(), measured.tolist()))
    assert found is not None
    assert found.rho == pytest.approx(scipy.stats.spearmanr(estimated, measured)[0])
    assert (found.n, found.top) == (40, 6)
    sums = [abs(measured[np.argsort(-abs(values))[:6]]).sum() for values in (estimated, measured)]
    assert 0.5 < found.found < 1.0
    assert found.found == pytest.approx(sums[0] / sums[1])


def test_of_few_or_equal_numbers_no_agreement_is_told() -> None:
    values = [0.1 * step for step in range(12)]
    one = table(values, [value**3 for value in values])
    found = agreement(one)
    assert found is not None
    assert (found.rho, found.n, found.top, found.found) == (
        pytest.approx(1.0),
        11,
        3,
        pytest.approx(1.0),
    )  # one does nothing
    assert not found.is_poor
    assert agreement(one.head(10)) is None
    assert agreement(one * NOTHING / 2) is None
    assert agreement(one.assign(estimated=0.5)) is None
    assert agreement(one.drop(columns="measured")) is None
    assert agreement(one.assign(measured=[*[None] * 3, *values[3:]]).astype(float)) is None  # nine are measured


def test_a_turned_or_random_order_is_near_chance() -> None:
    values = [0.1 * step for step in range(1, 31)]
    turned = agreement(table(values, [-value for value in values]))
    assert turned is not None
    assert turned.rho == pytest.approx(-1.0)
    assert turned.is_near_chance
    random = np.random.default_rng(1)
    tries = [agreement(table(values, random.permutation(values).tolist())) for _ in range(400)]
    share = sum(found is not None and found.is_near_chance for found in tries) / len(tries)
    assert 0.95 < share < 1.0


def test_a_good_order_that_misses_the_largest_effects_is_poor() -> None:
    values = [0.01 * step for step in range(1, 61)]
    missed = agreement(table([0.0, 0.0, 0.0, 0.0, *values[4:]], [9.0, 8.0, 7.0, 6.0, *values[4:]]))
    assert missed is not None
    assert missed.found == pytest.approx(sum(values[-6:]) / (9 + 8 + 7 + 6 + sum(values[-2:])))
    assert not missed.is_near_chance
    assert missed.is_poor
    alike = agreement(table(values, [*values[:40], *[0.7 - value / 10 for value in values[40:]]]))
    assert alike is not None
    assert alike.found > 0.95
    assert not alike.is_poor


def test_half_of_what_is_measured_first_is_chosen_at_random() -> None:
    estimates = [(-1.0) ** at * at for at in range(1000)]
    order = order_to_measure(estimates)
    assert sorted(order) == list(range(1000))
    assert order[0] == 999
    first = set(order[:100])
    assert set(range(960, 1000)) <= first
    assert 35 <= len(first & set(range(900))) <= 50
