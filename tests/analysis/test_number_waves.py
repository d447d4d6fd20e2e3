"""Frequencies among numbers: compared with numpy's transform, found in a planted circle, absent from random vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import xformer
from tests.analysis.test_embeddings import random
from tests.pages.conftest import ROOT
from tests.training.tiny import random_model
from xformer.analysis import number_waves
from xformer.analysis.number_waves import (
    circle,
    circle_of,
    number_spectrum,
    number_vectors,
    power_shares,
    spectrum,
    spectrum_of,
)


def planted(n: int, d: int, frequency: int, noise: float) -> Tensor:
    """Place numbers on a circle of one frequency, in a random plane, with noise and a nonzero mean."""
    angle = 2 * math.pi * frequency * torch.arange(n, dtype=torch.float64) / n
    plane = torch.linalg.qr(random(d, 2, 7))[0]  # [d, 2]
    return torch.stack((angle.cos(), angle.sin()), dim=1) @ plane.T + noise * random(n, d, 8) + 3.0


@pytest.mark.parametrize("n", [10, 23])
def test_shares_computed_in_blocks_match_numpys_transform(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_waves, "BLOCK_BYTES", 3_000)
    x = random(n, 5) + 2.0
    power = (np.abs(np.fft.fft(x.numpy(), axis=0)) ** 2).sum(axis=1)  # [n]: both k and n - k
    expected = [(power[k] + power[n - k]) / (1 + (2 * k == n)) for k in range(1, n // 2 + 1)]
    expected = np.array(expected) / power[1:].sum()  # without the mean
    np.testing.assert_allclose(power_shares(x)[0].numpy(), expected, rtol=1e-10)
    assert power_shares(x).sum().item() == pytest.approx(1.0, abs=1e-12)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(power_shares(x, order[None])[0], power_shares(x[order.argsort()])[0], rtol=1e-10, atol=0)


def test_equal_vectors_have_no_frequencies() -> None:
    found = spectrum_of(torch.ones(9, 5), n_shuffles=20)
    assert found.shares.tolist() == [0.0] * 4
    assert (found.peaks, found.share_of_peaks) == ([], 0)


def test_a_planted_circle_is_found() -> None:
    frequency = 5
    x = planted(23, 16, frequency, noise=0.05)
    found = spectrum_of(x, n_shuffles=200)
    assert found.peaks == [frequency]
    assert found.share_of_peaks > 0.9
    seen = circle_of(x, frequency)
    assert seen.uneven < 0.15
    assert seen.explained == pytest.approx(seen.points.square().sum().item() / ((x - x.mean(0)) ** 2).sum().item())
    # In the plane, the numbers are at the cosine and sine of the frequency, up to the noise.
    angle = 2 * math.pi * frequency * torch.arange(23, dtype=torch.float64) / 23
    assert torch.corrcoef(torch.stack((seen.points[:, 0], angle.cos())))[0, 1] > 0.95


def test_random_vectors_have_no_peaks() -> None:
    for seed in range(3):
        assert spectrum_of(random(19, 16, seed), n_shuffles=200).peaks == []
    assert circle_of(random(19, 64), 3).uneven > 0.2


def test_the_tables_have_every_number_once() -> None:
    model = random_model("encoder")  # eleven tokens, all of them numbers
    with torch.no_grad():
        model.embedding.token.copy_(planted(11, 13, 2, noise=0.1))
    reading = xformer.read(model, "3 7")
    found, seen = number_spectrum(reading), circle_of(number_vectors(reading), 2)
    assert spectrum(reading).to_dict("list") == {
        "frequency": [1, 2, 3, 4, 5],
        "period": [11.0, 5.5, 11 / 3, 2.75, 2.2],
        "share": found.shares.tolist(),
        "chance": [found.chance] * 5,
        "above_chance": [False, True, False, False, False],
    }
    points = circle(reading, frequency=2)
    assert points["number"].tolist() == [str(number) for number in range(11)]
    assert points[["cosine_axis", "sine_axis"]].to_numpy().tolist() == seen.points.tolist()
    assert points["phase"].tolist() == pytest.approx([2 * number / 11 % 1 for number in range(11)])


@pytest.mark.parametrize(("model", "peaks"), [("modular", [1, 17]), ("reverse", [])])
def test_shipped_models_have_the_frequencies_that_their_tasks_suggest(model: str, peaks: list[int]) -> None:
    """Addition modulo 59 is learned on circles; reversing does not need them."""
    checkpoint = xformer.load(ROOT / "checkpoints" / model)
    assert checkpoint.task is not None
    numbers = number_vectors(xformer.read(checkpoint, checkpoint.task.rule.default))
    assert len(numbers) == checkpoint.task.rule.n_numbers
    assert spectrum_of(numbers, n_shuffles=99).peaks == peaks
