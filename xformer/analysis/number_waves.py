"""Fourier analysis of the embeddings of numbers: how their variance is distributed over frequencies.

    F[k] = Σ_n x_n e^(−2πi k n / N)      the discrete Fourier transform over the N numbers, after subtracting their mean
    share of frequency k = |F[k]|² (plus that of its mirror image N − k) / total power, each summed over the dimensions

A model that learns to add modulo N can lay the numbers on circles, one per frequency (Nanda et al. 2023, arXiv:2301.05217, §4).
Random vectors have peaks too, so each share is compared with those of the same vectors in shuffled order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters import TaskModel
from xformer.analysis.embeddings import token_labels, vocabulary_vectors
from xformer.errors import UnavailableError
from xformer.formatting import check_index
from xformer.reading import Reading

MIN_NUMBERS = 8
"""With fewer numbers there are too few frequencies for a peak to be meaningful."""
PEAK_OVER_CHANCE = 1.5
"""The strongest peak must be at least this many times the highest share of any shuffle."""
N_SHUFFLES, MIN_SHUFFLES = 999, 19
"""The largest and smallest numbers of random orders that a spectrum is compared with; more numbers allow fewer orders."""
MAX_SHUFFLED = 2 * 10**8
"""The most entries (shuffles × numbers × dimensions) transformed for the comparison: a few seconds of work."""
BLOCK_BYTES = 16 * 1024**2
"""Memory that one block of the transform may use."""
BYTES_PER_ENTRY = 48
"""Memory per entry of a block: as float64, reordered, transformed, and squared."""
Step = Callable[[int, int], None]
"""Called with the number of steps done and in total. Raising an exception stops the computation."""


def numbers(reading: Reading) -> range:
    """Return the tokens that are numbers, in order: those of the task, possibly none; without a task, all tokens."""
    if isinstance(reading.adapter, TaskModel):
        return range(1, 1 + reading.adapter.task.rule.n_numbers)
    return range(reading.adapter.shape.n_inputs)


def number_vectors(reading: Reading, stack: str | None = None) -> Float[Tensor, "number d_model"]:
    """Return the vectors of the numbers, in order."""
    return vocabulary_vectors(reading, stack)[list(numbers(reading))]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """How the variance of the numbers' vectors is distributed over the frequencies."""

    n: int
    """The number of numbers."""
    shares: Float[Tensor, " frequency"]
    """The shares of the frequencies 1, 2, … n // 2, in turns over all numbers. They sum to 1."""
    chance: float
    """The highest share of any frequency in any shuffle."""
    n_shuffles: int

    @property
    def peaks(self) -> list[int]:
        """The frequencies whose share exceeds that of every shuffle, strongest first; empty if the strongest is not clear, see
        `PEAK_OVER_CHANCE`."""
        order = self.shares.argsort(descending=True).tolist()
        if not self.chance or self.shares[order[0]] < PEAK_OVER_CHANCE * self.chance:
            return []
        return [1 + place for place in order if self.shares[place] > self.chance]

    @property
    def share_of_peaks(self) -> float:
        return sum(self.shares[frequency - 1].item() for frequency in self.peaks)


def power_shares(
    vectors: Float[Tensor, "number d_model"], orders: Int[Tensor, "order number"] | None = None
) -> Float[Tensor, "order frequency"]:
    """Return the share of each frequency in the vectors' variance over the numbers.

    Orders and dimensions are transformed in blocks, which use `BLOCK_BYTES` of memory besides the result.

    Args:
        vectors: The vectors of the numbers.
        orders: Permutations; each gives the place of every number. By default, only the natural order.

    Returns:
        The shares of the frequencies 1 … n // 2, which sum to 1; all 0 if the vectors are all equal.
    """
    n, d_model = vectors.shape
    orders = torch.arange(n)[None] if orders is None else orders
    power = torch.zeros(len(orders), n // 2, dtype=torch.float64)
    entries = max(1, BLOCK_BYTES // (BYTES_PER_ENTRY * n))  # rows of n entries that fit in a block
    width = min(d_model, entries)
    for first in range(0, d_model, width):
        part = vectors[:, first : first + width].double().T  # [dimension, number]
        centred = part - part.mean(dim=1, keepdim=True)
        for block in range(0, len(orders), max(1, entries // width)):
            at = orders[block : block + max(1, entries // width)].argsort(dim=-1)  # [order, place]: the number there
            read = centred[:, at].transpose(0, 1)  # [order, dimension, place]
            waves = torch.fft.rfft(read, dim=-1)[..., 1:]  # [order, dimension, frequency]
            power[block : block + len(at)] += torch.view_as_real(waves).square().sum(dim=(1, -1))
    if n % 2 == 0:
        power[:, -1] /= 2  # the others stand for two equal terms, k and n − k; n / 2 is its own mirror image
    total = power.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, power / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def shuffles_for(n: int, d_model: int) -> int:
    """Return the number of random orders that a spectrum of n vectors is compared with."""
    return max(MIN_SHUFFLES, min(N_SHUFFLES, MAX_SHUFFLED // max(1, n * d_model)))


def spectrum_of(
    vectors: Float[Tensor, "number d_model"], n_shuffles: int | None = None, *, step: Step | None = None
) -> Spectrum:
    """Compute the shares of the frequencies, and the highest share in random orders of the same vectors.

    Args:
        vectors: The vectors of the numbers, in order.
        n_shuffles: The number of random orders; by default that of `shuffles_for`.
        step: Called with the number of orders done and in total.
    """
    vectors, n = vectors.cpu(), len(vectors)
    n_shuffles = shuffles_for(*vectors.shape) if n_shuffles is None else n_shuffles
    generator, chance = torch.Generator().manual_seed(0), 0.0
    at_once = max(1, min(128, BLOCK_BYTES // (BYTES_PER_ENTRY * n)))
    for done in range(0, n_shuffles, at_once):
        orders = torch.rand(min(at_once, n_shuffles - done), n, generator=generator).argsort(dim=-1)
        chance = max(chance, power_shares(vectors, orders).max().item())
        if step is not None:
            step(done + len(orders), n_shuffles)
    return Spectrum(n, power_shares(vectors)[0], chance, n_shuffles)


def number_spectrum(reading: Reading, stack: str | None = None, *, step: Step | None = None) -> Spectrum:
    """Compute the spectrum of the numbers' vectors; see `spectrum_of`."""
    return spectrum_of(number_vectors(reading, stack), step=step)


def _check_numbers(reading: Reading) -> None:
    """Raise `UnavailableError` if the model reads no numbers."""
    if len(numbers(reading)) < 2:
        raise UnavailableError(f"{reading.adapter.name} reads no numbers, whose embeddings could form waves.")


def spectrum(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """Compute the spectrum of the embeddings of numbers, next to the peaks that chance alone reaches.

    Args:
        reading: Any run of the model.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        A row per frequency: frequency (turns over all numbers), period (numbers per turn), share (of the variance), chance (the
        highest share of any frequency in any shuffle) and above_chance.

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> table = xformer.analysis.spectrum(modular)
        >>> list(table.columns)
        ['frequency', 'period', 'share', 'chance', 'above_chance']
    """
    _check_numbers(reading)
    found = number_spectrum(reading, stack)
    table = pd.DataFrame({"frequency": range(1, len(found.shares) + 1)})
    table["period"] = found.n / table["frequency"]
    above = (found.shares > found.chance).tolist()
    return table.assign(share=found.shares.tolist(), chance=found.chance, above_chance=above)


@dataclass(frozen=True, eq=False)
class Circle:
    """The numbers projected onto the plane of one frequency."""

    points: Float[Tensor, "number 2"]
    """Coordinates along two orthogonal axes of the plane; the first has the direction of the frequency's cosine."""
    uneven: float
    """The standard deviation of the distances from the centre divided by their mean: 0 on a perfect circle."""
    explained: float
    """The share of the vectors' variance that lies in the plane."""


def circle_of(vectors: Float[Tensor, "number d_model"], frequency: int) -> Circle:
    """Project the numbers onto the plane of a frequency, spanned by Σ x_n cos(2πkn/N) and Σ x_n sin(2πkn/N)."""
    centred = vectors.double() - vectors.double().mean(dim=0)  # [number, d_model]
    angle = 2 * torch.pi * frequency * torch.arange(len(vectors), dtype=torch.float64) / len(vectors)
    waves = torch.stack((angle.cos(), angle.sin()))  # [2, number]
    axes, _ = torch.linalg.qr((waves @ centred).T)  # [d_model, 2 at most]
    points = torch.nn.functional.pad(centred @ axes, (0, 2 - axes.shape[1]))  # [number, 2]
    points = points * torch.where((waves * points.T).sum(dim=1) < 0, -1.0, 1.0)  # the sign of an axis is arbitrary
    radius, total = points.norm(dim=1), centred.square().sum()
    uneven = (radius.std(unbiased=False) / radius.mean()).nan_to_num(0.0).item()
    return Circle(points, uneven, (points.square().sum() / total).nan_to_num(0.0).item())


def circle(reading: Reading, *, frequency: int, stack: str | None = None) -> pd.DataFrame:
    """Project the embeddings of the numbers onto the plane of one frequency.

    Args:
        reading: Any run of the model.
        frequency: The frequency, in turns over all numbers.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        A row per number: number (its label), cosine_axis and sine_axis (coordinates), radius (distance from the centre) and
        phase (the expected angle, in turns from 0 to 1).

    Example:
        >>> import xformer
        >>> modular = xformer.read("checkpoints/modular", "7 12")
        >>> table = xformer.analysis.circle(modular, frequency=4)
        >>> list(table.columns)
        ['number', 'cosine_axis', 'sine_axis', 'radius', 'phase']
    """
    _check_numbers(reading)
    vectors = number_vectors(reading, stack)
    check_index("frequency", frequency, len(vectors) // 2 + 1, least=1)
    points = circle_of(vectors, frequency).points
    table = pd.DataFrame(points.tolist(), columns=["cosine_axis", "sine_axis"])
    labels = token_labels(reading.adapter)
    table.insert(0, "number", [labels[token] for token in numbers(reading)])
    phase = frequency * table.index.to_numpy() / len(points) % 1.0
    return table.assign(radius=points.norm(dim=1).tolist(), phase=phase)
