"""Vectors beside each other: their angles, how alike random ones are, and the axes along which they differ most.

    cosine(a, b)   = a·b / (‖a‖ ‖b‖)
    PCA            X − mean = U S Vᵀ; a point's coordinates are the rows of U S, an axis explains the share sᵢ² / Σ s²

Everything is worked out in double precision, but for the products of very many vectors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_PAIRED = 4_096
"""Of more vectors so many, evenly apart, are compared with each other."""
BLOCK_BYTES = 16 * 1024**2
"""Memory that one block of cosines may take."""
MOST_IN_DOUBLE = 2**22
"""Of more numbers than these no copy in double precision is made: a vocabulary of 49,152 tokens takes seconds then."""


def cosine_matrix(
    vectors: Float[Tensor, "a d_model"], others: Float[Tensor, "b d_model"] | None = None
) -> Float[Tensor, "a b"]:
    """The cosine of every vector with every other (with every one of `others`); 0 where one has no length."""
    a = torch.nn.functional.normalize(vectors.double(), dim=-1)
    b = a if others is None else torch.nn.functional.normalize(others.double(), dim=-1)
    return a @ b.T


def cosine_blocks(
    vectors: Float[Tensor, "a d_model"], others: Float[Tensor, "b d_model"]
) -> Iterator[tuple[int, Float[Tensor, "row b"]]]:
    """The rows of `cosine_matrix(vectors, others)` in blocks of `BLOCK_BYTES`, each with the number of its first row."""
    others = torch.nn.functional.normalize(others.double(), dim=-1)
    rows = max(1, BLOCK_BYTES // (8 * max(1, len(others))))
    for first in range(0, len(vectors), rows):
        block = torch.nn.functional.normalize(vectors[first : first + rows].double(), dim=-1)
        yield first, block @ others.T


def evenly(n: int, most: int) -> Int[Tensor, " chosen"]:
    """`most` of the numbers 0 … n − 1, evenly apart; all where there are no more."""
    return torch.arange(n) if n <= most else torch.linspace(0, n - 1, most, dtype=torch.float64).round().long()


def mean_cosines(vectors: Float[Tensor, "pos d_model"]) -> tuple[float, float]:
    """The mean cosine of two vectors that stand side by side, and of any two different ones. Takes two or more."""
    unit, n = torch.nn.functional.normalize(vectors.double(), dim=-1), len(vectors)
    own = unit.square().sum()  # of each with itself
    return (unit[1:] * unit[:-1]).sum().item() / (n - 1), (
        (unit.sum(dim=0).square().sum() - own) / (n * (n - 1))
    ).item()


def mean_alikeness(vectors: Float[Tensor, "n d_model"]) -> tuple[float, float]:
    """The mean |cosine| of two different vectors, and by how many standard errors it is above that of random directions.

    Of more than `MOST_PAIRED` vectors so many are compared. Of random directions, cosine² has mean 1/d, so |cosine| has
    variance 1/d − (mean |cosine|)²; different pairs are uncorrelated.
    """
    vectors = vectors[evenly(len(vectors), MOST_PAIRED)]
    n, d_model = vectors.shape
    if n < 2 or d_model < 2:
        return 1.0, 0.0
    total = 0.0
    for first, block in cosine_blocks(vectors, vectors):
        total += (block.abs().sum() - block.diagonal(first).abs().sum()).item()
    mean = total / (n * (n - 1))
    usual = random_cosine(d_model)
    return mean, (mean - usual) / math.sqrt((1 / d_model - usual**2) / (n * (n - 1) / 2))


def random_cosine(d_model: int) -> float:
    """How large |cosine| is on average between random directions: Γ(d/2) / (√π Γ((d+1)/2)); 1 in one dimension."""
    return math.exp(math.lgamma(d_model / 2) - math.lgamma((d_model + 1) / 2)) / math.sqrt(math.pi)


def cosines_with(vectors: Float[Tensor, "a d_model"], one: int) -> Float[Tensor, " a"]:
    """The cosine of one of the vectors with each of them: as `cosine_matrix` has it, in one product."""
    if vectors.numel() <= MOST_IN_DOUBLE:
        return cosine_matrix(vectors[one : one + 1], vectors)[0]
    lengths = vectors.norm(dim=-1)
    return ((vectors @ vectors[one]) / (lengths * lengths[one]).clamp(min=1e-12)).double()


@dataclass(frozen=True, eq=False)
class Pca:
    """Points seen along the directions in which they differ most."""

    mean: Float[Tensor, " d_model"]
    axes: Float[Tensor, "axis d_model"]
    """Unit vectors at right angles, the most telling first; the largest entry of each is positive."""
    points: Float[Tensor, "point axis"]
    explained: Float[Tensor, " axis"]
    """The share of the points' whole variance that lies along each axis."""


def pca(vectors: Float[Tensor, "point d_model"], n_axes: int | None = None) -> Pca:
    """The first `n_axes` principal axes (at most as many as there are points or dimensions)."""
    if vectors.numel() > MOST_IN_DOUBLE:
        return _pca_of_many(vectors, n_axes)
    mean = vectors.double().mean(dim=0)
    centred = vectors.double() - mean  # [point, d_model]
    u, s, axes = torch.linalg.svd(centred, full_matrices=False)
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))  # [axis, 1]
    sign = torch.where(largest < 0, -1.0, 1.0)  # an axis has no direction of its own: make it the same every time
    total = s.square().sum()
    explained = s.square() / total if total > 0 else torch.zeros_like(s)
    return Pca(mean, (axes * sign)[:n_axes], (u * s * sign.T)[:, :n_axes], explained[:n_axes])


def _pca_of_many(vectors: Float[Tensor, "point d_model"], n_axes: int | None) -> Pca:
    """The same, by the eigenvectors of the dimensions' covariance, one product of single precision.

    The last one is remembered for as long as these very numbers are there, as it takes a good part of a second.
    """
    numbers = vectors.untyped_storage()
    state = (vectors._version, vectors.storage_offset(), vectors.shape, vectors.stride(), n_axes)
    if not _LAST or _LAST[0][0]() is not numbers or _LAST[0][1] != state:
        _LAST[:] = [(weakref.ref(numbers), state, _eigen_pca(vectors, n_axes))]
    return _LAST[0][2]


_LAST: list[tuple[weakref.ref[torch.UntypedStorage], tuple[object, ...], Pca]] = []


def _eigen_pca(vectors: Float[Tensor, "point d_model"], n_axes: int | None) -> Pca:
    mean = vectors.mean(dim=0)
    centred = vectors - mean
    values, columns = torch.linalg.eigh((centred.T @ centred).double())  # ascending
    axes = columns.T.flip(0)[:n_axes]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    points = (centred @ axes.T.to(centred.dtype)).double()
    return Pca(mean.double(), axes, points, values.flip(0)[: len(axes)].clamp(min=0) / values.clamp(min=0).sum())
