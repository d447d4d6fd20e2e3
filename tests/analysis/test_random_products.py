"""Products of random vectors against probability, and a softmax's Jacobian against autograd."""

from __future__ import annotations

import pytest
import torch

from xformer.analysis.principles import product_variances, softmax_jacobian, softmax_row, softmax_saturation


@pytest.mark.parametrize("seed", range(5))
def test_the_variance_of_q_k_is_d_and_with_the_scale_1(seed: int) -> None:
    frame = product_variances(widths=[2, 7, 64, 512], samples=3000, seed=seed)
    # Five standard errors: for the twenty numbers of this test together, a chance of about 1e-5 to fail.
    assert ((frame["variance"] - frame["d"]).abs() < 5 * frame["error"]).all()
    assert frame["scaled"].tolist() == pytest.approx((frame["variance"] / frame["d"]).tolist())


def test_the_error_of_a_variance_is_how_far_many_of_them_scatter() -> None:
    frames = [product_variances(widths=[1, 5], samples=200, seed=seed) for seed in range(400)]
    for row, d in enumerate((1, 5)):
        scatter = torch.tensor([frame["variance"][row] for frame in frames]).std().item()
        # The scatter of a scatter: heavy tails (the products' eighth moment) leave it within a fifth or so at 400 draws.
        assert scatter == pytest.approx(frames[0]["error"][row], rel=0.3), d


def test_the_variance_is_measured_on_products_of_the_same_draws() -> None:
    draw = torch.Generator().manual_seed(11)
    q, k = (torch.randn(50, 13, generator=draw, dtype=torch.float64) for _ in range(2))
    expected = [(q[:, :d] * k[:, :d]).sum(dim=1).var().item() for d in (3, 13)]
    assert product_variances(widths=[3, 13], samples=50, seed=11)["variance"].tolist() == pytest.approx(expected)


def test_the_jacobian_is_that_of_autograd_and_its_largest_entry_p_1_minus_p() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.7], dtype=torch.float64)
    weights = scores.softmax(dim=0)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=0), scores)
    assert torch.allclose(softmax_jacobian(weights), expected, rtol=0, atol=1e-15)
    assert expected.abs().max().item() == pytest.approx((weights * (1 - weights)).max().item())


def test_without_the_scale_the_softmax_saturates_and_with_it_it_does_not() -> None:
    frame = softmax_saturation(widths=[1, 4, 64, 512], n_keys=5, samples=300, seed=2).set_index(["d", "scale"])
    assert frame.loc[(1, "without")].tolist() == frame.loc[(1, "with 1/√d")].tolist()
    raw = frame.xs("without", level="scale")["gradient"].tolist()
    assert raw == sorted(raw, reverse=True)
    assert raw[-1] < 0.25 * raw[0]
    scaled = frame.xs("with 1/√d", level="scale")["gradient"]
    assert scaled.min() > 0.15
    assert frame["gradient"].max() <= 0.25


def test_one_row_is_a_softmax_of_products() -> None:
    row, raw = (softmax_row(d=16, n_keys=7, scaled=scaled, seed=3) for scaled in (True, False))
    assert (row["score"] * 4).tolist() == pytest.approx(raw["score"].tolist())
    assert row["weight"].tolist() == pytest.approx(torch.tensor(row["score"]).softmax(dim=-1).tolist())
