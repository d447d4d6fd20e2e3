"""Vectors beside each other against independent references: F.cosine_similarity, an eigen-decomposition, loops; prime sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.analysis import embeddings
from xformer.analysis.embeddings import cosine_matrix, mean_alikeness, mean_cosines, pca, random_cosine


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Points with a mean that is not zero and axes of clearly different lengths."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) * torch.arange(1, d + 1) + 3.0


def test_cosines_are_those_of_pytorch() -> None:
    a, b = points(7, 13), points(5, 13, seed=1)
    expected = torch.stack([F.cosine_similarity(a, row[None], dim=-1) for row in b], dim=1)
    torch.testing.assert_close(cosine_matrix(a, b), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(cosine_matrix(a).diagonal(), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-14)
    assert cosine_matrix(a.float()).dtype == torch.float64


@pytest.mark.parametrize(("n", "d"), [(11, 5), (5, 11), (7, 7)])
def test_pca_is_the_eigen_decomposition_of_the_covariance(n: int, d: int) -> None:
    x = points(n, d)
    found = pca(x)
    covariance = torch.cov(x.T, correction=0)  # [d, d]
    values, vectors = torch.linalg.eigh(covariance)  # ascending
    k = min(n - 1, d)  # centred points span at most n − 1 directions
    share = values.flip(0)[:k] / values.sum()
    torch.testing.assert_close(found.explained[:k], share, rtol=0, atol=1e-13)
    along = (found.axes[:k] * vectors.T.flip(0)[:k]).sum(dim=1).abs()  # the same axes, up to their sign
    torch.testing.assert_close(along, torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.points.square().mean(dim=0)[:k], values.flip(0)[:k], rtol=1e-11, atol=0)


@pytest.mark.parametrize(("n", "d"), [(11, 5), (5, 11)])
def test_pca_gives_the_points_back_and_its_axes_are_orthonormal(n: int, d: int) -> None:
    x = points(n, d)
    found = pca(x)
    torch.testing.assert_close(found.mean + found.points @ found.axes, x, rtol=0, atol=1e-12)
    torch.testing.assert_close((x - found.mean) @ found.axes.T, found.points, rtol=0, atol=1e-12)
    k = len(found.axes)
    torch.testing.assert_close(found.axes @ found.axes.T, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-13)
    assert found.explained.sum().item() == pytest.approx(1.0, abs=1e-13)
    # Two axes lose exactly the variance that they do not explain.
    two = pca(x, 2)
    lost = (two.mean + two.points @ two.axes - x).square().sum() / (x - x.mean(dim=0)).square().sum()
    assert lost.item() == pytest.approx(1 - two.explained.sum().item(), abs=1e-13)


def test_pca_has_one_sign_only() -> None:
    x = points(11, 5)
    axes = pca(x).axes
    assert (axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) > 0).all()
    mirrored = pca(2 * x.mean(dim=0) - x)  # every point on the other side of the mean
    torch.testing.assert_close(mirrored.axes, axes, rtol=0, atol=1e-12)
    torch.testing.assert_close(mirrored.points, -pca(x).points, rtol=0, atol=1e-11)


def test_pca_of_points_that_are_all_the_same_explains_nothing() -> None:
    assert pca(torch.ones(5, 3)).explained.tolist() == [0.0, 0.0, 0.0]


def test_the_axes_of_many_points_are_the_same_and_remembered_until_a_number_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = points(31, 5).float()
    few = pca(vectors, 2)
    monkeypatch.setattr(embeddings, "MOST_IN_DOUBLE", 0)
    many = pca(vectors, 2)
    torch.testing.assert_close(many.points, few.points, rtol=0, atol=1e-3)
    torch.testing.assert_close(many.explained, few.explained, rtol=0, atol=1e-5)
    assert pca(vectors.detach(), 2) is many
    assert len(pca(vectors, 3).axes) == 3
    vectors[0] += 100
    assert not pca(vectors, 3).mean.equal(many.mean)


def test_mean_cosines_by_loops() -> None:
    x = points(7, 5)
    angle = cosine_matrix(x)
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    beside = [angle[i, i + 1].item() for i in range(6)]
    assert mean_cosines(x) == pytest.approx((sum(beside) / 6, sum(angle[i, j].item() for i, j in pairs) / 42))


@pytest.mark.parametrize("d", [2, 3, 13])
def test_random_directions_are_as_alike_as_the_formula_says(d: int) -> None:
    x = torch.randn(200_000, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    first = (x[:, 0] / x.norm(dim=1)).abs()  # the cosine with a fixed direction
    assert random_cosine(d) == pytest.approx(first.mean().item(), abs=5 * first.std().item() / math.sqrt(200_000))
    assert first.var().item() == pytest.approx(1 / d - random_cosine(d) ** 2, rel=0.02)
    assert random_cosine(2) == pytest.approx(2 / math.pi, abs=1e-14)
    assert random_cosine(3) == pytest.approx(1 / 2, abs=1e-14)


def test_alikeness_in_standard_errors() -> None:
    """Over many random vocabularies the errors are those of a standard score; vectors drawn together stand out."""
    draw = torch.Generator().manual_seed(1)
    errors = torch.tensor(
        [mean_alikeness(torch.randn(19, 17, generator=draw, dtype=torch.float64))[1] for _ in range(400)]
    )
    assert abs(errors.mean().item()) < 5 / math.sqrt(400)
    assert errors.std().item() == pytest.approx(1.0, abs=0.2)
    assert mean_alikeness(torch.eye(17, dtype=torch.float64))[0] == 0.0
    assert mean_alikeness(torch.eye(17, dtype=torch.float64))[1] < -5
    assert mean_alikeness(torch.randn(19, 17, generator=draw) + 2.0)[1] > 5
