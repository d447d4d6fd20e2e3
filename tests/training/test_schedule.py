"""The learning rate, step by step, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xformer.config import TrainConfig
from xformer.training.schedule import learning_rate


def rates(**settings: Any) -> list[float]:
    config = TrainConfig(**settings)
    return [learning_rate(config, step) for step in range(1, config.steps + 1)]


def test_up_along_a_line_and_down_to_zero() -> None:
    # W = 2: 1/2 and 2/2 of the peak, then t = (step - 3) / 8
    assert rates(steps=10, warmup=0.2, peak_lr=8.0) == pytest.approx([4, 8, 8, 7, 6, 5, 4, 3, 2, 1])


def test_down_to_a_final_rate() -> None:
    assert rates(steps=6, warmup=1 / 3, peak_lr=5.0, final_lr=1.0) == pytest.approx([2.5, 5, 5, 4, 3, 2])


def test_half_a_cosine() -> None:
    # W = 1, t = 0, 1/4, 1/2, 3/4: 1 + 4 (1 + cos πt) / 2
    r = math.sqrt(0.5)
    expected = [5, 5, 3 + 2 * r, 3, 3 - 2 * r]
    assert rates(steps=5, warmup=0.2, peak_lr=5.0, final_lr=1.0, decay="cosine") == pytest.approx(expected)


def test_no_decay() -> None:
    assert rates(steps=6, warmup=0.5, peak_lr=3.0, decay="none") == pytest.approx([1, 2, 3, 3, 3, 3])


def test_no_warm_up() -> None:
    assert rates(steps=4, warmup=0.0, peak_lr=4.0) == pytest.approx([4, 3, 2, 1])


def test_nothing_but_warm_up() -> None:
    for decay in ("linear", "cosine", "none"):
        assert rates(steps=4, warmup=1.0, peak_lr=4.0, decay=decay) == pytest.approx([1, 2, 3, 4])


def test_warm_up_is_rounded_to_whole_steps() -> None:
    assert rates(steps=7, warmup=0.4, peak_lr=3.0, decay="none")[:4] == pytest.approx([1, 2, 3, 3])  # 2.8 steps


@pytest.mark.parametrize("decay", ["linear", "cosine", "none"])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.2, 1.0])
def test_a_rate_is_never_above_its_peak_and_never_zero(decay: str, warmup: float) -> None:
    for steps in (1, 2, 3, 17, 100):
        for rate in rates(steps=steps, warmup=warmup, peak_lr=2.0, decay=decay):
            assert 0 < rate <= 2.0
