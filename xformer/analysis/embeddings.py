"""Embeddings: the vectors of an input and of the whole vocabulary, their cosines, principal axes and nearest neighbours.

    enters layer 1 = E[token] (× √d_model if embeddings are scaled) + P[position]      (Vaswani et al. 2017, §3.4–3.5)

`stack` selects one side of an encoder-decoder: the encoder reads the source, the decoder the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters import ModelAdapter
from xformer.analysis.tables import array_table, selected_positions
from xformer.arguments import Count
from xformer.formatting import check_index, check_option
from xformer.layer_path import STACKS
from xformer.memory import check_analysis
from xformer.reading import Reading

WORDS_OUT = ("next_token", "masked_token", "pair_next_token")
"""The output kinds of external models whose output vocabulary is the input vocabulary."""


def vocabulary_vectors(reading: Reading, stack: str | None = None) -> Float[Tensor, "vocab d_model"]:
    """Return the embedding of every token as the stack receives it; for an external model, the rows of its table.

    Raises `InputError` for a model of images, and `UnavailableError` if there is no table.
    """
    check_option("stack", stack, STACKS)
    return reading.adapter.weights.token_embedding(stack)


def token_labels(adapter: ModelAdapter) -> tuple[str, ...]:
    """Return the label of each input token. Only language models have the same labels for inputs and outputs."""
    if adapter.output in WORDS_OUT:
        return tuple(adapter.token_labels)
    return adapter.token_names(torch.arange(adapter.shape.n_inputs))


def input_vectors(reading: Reading, stack: str | None = None) -> dict[str, Float[Tensor, "pos d_model"]]:
    """Return the parts that make up the vectors of the first input: "tokens", "positions", and "sum", the input of layer 1.

    A model that adds no position vectors has only "tokens".
    """
    check_option("stack", stack, STACKS)
    stack = (stack or "encoder") if reading.is_encoder_decoder else reading.output_stack
    at = f"{stack}." if reading.is_encoder_decoder else ""
    parts = {"tokens": reading[f"{at}embed"][0]}  # [pos, d_model]
    if f"{at}pos_embed" in reading:
        added = reading[f"{at}pos_embed"]  # [pos, d_model], or [batch, pos, d_model] where rows differ
        parts["positions"] = added if added.dim() == 2 else added[0]
        parts["sum"] = reading[f"{stack}.0.resid_pre"][0]
    return parts


def is_the_sum(parts: Mapping[str, Float[Tensor, "pos d_model"]]) -> bool:
    """Return whether "sum" is simply tokens + positions: some models normalise the sum, or map it to another width."""
    if "sum" not in parts:
        return False
    tokens, positions, total = (parts[name] for name in ("tokens", "positions", "sum"))
    return tokens.shape == total.shape and bool(torch.allclose(tokens + positions, total, atol=1e-5))


def vectors(
    reading: Reading, *, part: str = "tokens", stack: str | None = None, positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """Tabulate the embedding vectors of the input, a row per number.

    Args:
        reading: The run.
        part: "tokens" (token embeddings), "positions" (position vectors), or "sum" (what the first layer receives).
        stack: "encoder" or "decoder" of an encoder-decoder.
        positions: The positions to return, from 0; all by default.

    Returns:
        A row per position and dimension: position, token, dimension (both counted from 0) and value.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.vectors(reading)
        >>> list(table.columns)
        ['position', 'token', 'dimension', 'value']
    """
    chosen, labels, found = _selected_part(reading, part, stack, positions)
    return vector_table(found, labels, chosen)


def cosines(
    reading: Reading, *, part: str = "tokens", stack: str | None = None, positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """Compute the cosine similarity of every pair of embedding vectors of the input.

    Args:
        reading: The run.
        part: "tokens" (token embeddings), "positions" (position vectors), or "sum" (what the first layer receives).
        stack: "encoder" or "decoder" of an encoder-decoder.
        positions: The positions to compare, from 0; all by default.

    Returns:
        A row per ordered pair: position, token, other_position, other_token and cosine.

    Raises:
        InputError: If there are too many pairs.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.cosines(reading)
        >>> list(table.columns)
        ['position', 'token', 'other_position', 'other_token', 'cosine']
    """
    chosen, labels, found = _selected_part(reading, part, stack, positions)
    check_analysis("cosines", "select fewer positions", n=len(chosen))
    others = {"other_position": chosen, "other_token": labels}
    return array_table({"position": chosen, "token": labels}, others, cosine=cosine_matrix(found))


def principal_axes(reading: Reading, stack: str | None = None) -> Pca:
    """Return the first three principal axes of the vocabulary's embeddings."""
    return pca(vocabulary_vectors(reading, stack), 3)


def projection(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """Project the vocabulary's embeddings onto their first three principal axes.

    Args:
        reading: The run.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        A row per token of the vocabulary: id, token, positions (where it occurs in the input, as "0, 4", or "") and its
        coordinates pc1, pc2 and pc3. `attrs["explained"]` has the share of the variance along each axis.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.projection(reading)
        >>> list(table.columns)
        ['id', 'token', 'positions', 'pc1', 'pc2', 'pc3']
    """
    where: dict[int, list[str]] = {}
    for position, token in enumerate(reading.ids(stack)):
        where.setdefault(token, []).append(str(position))
    axes = principal_axes(reading, stack)
    points = axes.points
    labels = _row_labels(token_labels(reading.adapter), len(points))
    table = pd.DataFrame({"id": range(len(labels)), "token": labels})
    table["positions"] = [", ".join(where.get(token, [])) for token in range(len(labels))]
    found = table.join(pd.DataFrame(points.numpy(), columns=[f"pc{axis + 1}" for axis in range(points.shape[1])]))
    found.attrs["explained"] = axes.explained.tolist()
    return found


def neighbours(reading: Reading, *, token: int, stack: str | None = None, n: Count = 8) -> pd.DataFrame:
    """Find the `n` tokens of the vocabulary whose embeddings have the highest cosine similarity to that of a token.

    Args:
        reading: The run.
        token: The token's id.
        stack: "encoder" or "decoder" of an encoder-decoder.
        n: The number of neighbours.

    Returns:
        A row per neighbour, the most similar first: id, token, cosine and distance (Euclidean).

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neighbours(reading, token=3)
        >>> list(table.columns)
        ['id', 'token', 'cosine', 'distance']
    """
    every = vocabulary_vectors(reading, stack)
    labels = _row_labels(token_labels(reading.adapter), len(every))
    check_index("token", token, len(labels))
    alike = cosines_with(every, token)  # [vocab]
    alike[token] = -math.inf
    chosen = alike.topk(min(n, len(labels) - 1)).indices
    distance = (every[chosen].double() - every[token].double()).norm(dim=-1)
    table = pd.DataFrame({"id": chosen.tolist(), "token": [labels[token] for token in chosen.tolist()]})
    return table.assign(cosine=alike[chosen].tolist(), distance=distance.tolist())


def _row_labels(labels: Sequence[str], n: int) -> list[str]:
    """Return `n` labels: an embedding table may have more rows than the model has labels, or fewer."""
    return [*labels[:n], *(f"#{row}" for row in range(len(labels), n))]


def vector_table(
    vectors: Float[Tensor, "pos d_model"], labels: Sequence[str], positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """Tabulate any vectors, a row per number: position, token, dimension, value."""
    n_pos, d_model = vectors.shape
    at = {"position": range(n_pos) if positions is None else positions, "token": labels}
    return array_table(at, {"dimension": range(d_model)}, value=vectors.double())


def _selected_part(
    reading: Reading, part: str, stack: str | None, positions: Sequence[int] | None
) -> tuple[list[int], list[str], Float[Tensor, "pos d_model"]]:
    """Return the chosen positions, their tokens, and one part of their vectors."""
    parts, tokens = input_vectors(reading, stack), reading.tokens_of(stack)
    check_option("part", part, parts)
    found = parts[part]
    chosen = selected_positions(positions, len(found))
    return chosen, [tokens[position] for position in chosen], found[chosen]


BLOCK_BYTES = 16 * 1024**2
"""Memory that one block of cosines may use."""

MAX_DOUBLE_VALUES = 2**22
"""Arrays with more numbers are not copied to double precision: it takes seconds for a vocabulary of 49,152 tokens."""


def cosine_matrix(vectors: Float[Tensor, "a d_model"]) -> Float[Tensor, "a a"]:
    """Return the cosine of every pair of vectors; 0 for a vector of length 0."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
    return unit @ unit.T


def evenly(n: int, most: int) -> Int[Tensor, " chosen"]:
    """Return `most` evenly spaced numbers out of 0 … n − 1, or all of them if there are no more."""
    return torch.arange(n) if n <= most else torch.linspace(0, n - 1, most, dtype=torch.float64).round().long()


@dataclass(frozen=True)
class Alike:
    """The two tokens of an input whose embeddings have the highest cosine similarity."""

    tokens: tuple[int, int]
    """Their ids."""
    cosine: float
    usual: float
    """The cosine below which random tokens of the vocabulary stay, except in a share `SURE` of inputs of this length."""


SURE = 0.05
"""The share of inputs of random tokens that would be reported as having two similar tokens."""
MAX_PAIRED = 1_024
"""From a larger vocabulary, this many evenly spaced tokens are compared with each other."""


def most_alike(reading: Reading, stack: str | None = None) -> Alike | None:
    """Return the two most similar tokens of the input; None if two of as many random tokens would be as similar."""
    every, ids = vocabulary_vectors(reading, stack), sorted({token for token in reading.ids(stack) if token >= 0})
    n = len(ids)
    if n < 2:
        return None
    found = cosine_matrix(every[ids]).fill_diagonal_(-math.inf)
    best = found.max().item()
    some = cosine_matrix(every[evenly(len(every), MAX_PAIRED)])
    others = some[torch.ones_like(some, dtype=torch.bool).triu(1)].sort().values  # [pair]
    among = math.floor((1 - SURE / (n * (n - 1) / 2)) * (len(others) - 1))
    usual = others[among].item()
    one, other = divmod(found.argmax().item(), n)
    return Alike((ids[int(one)], ids[int(other)]), best, usual) if best > usual else None


def cosines_with(vectors: Float[Tensor, "a d_model"], one: int) -> Float[Tensor, " a"]:
    """Return the cosine of one of the vectors with each of them."""
    exact = vectors if vectors.numel() > MAX_DOUBLE_VALUES else vectors.double()
    return torch.cosine_similarity(exact, exact[one], dim=-1).double()


@dataclass(frozen=True, eq=False)
class Pca:
    """Points projected onto their principal axes."""

    mean: Float[Tensor, " d_model"]
    axes: Float[Tensor, "axis d_model"]
    """Orthogonal unit vectors in order of decreasing variance; the entry of each with the largest magnitude is positive."""
    points: Float[Tensor, "point axis"]
    explained: Float[Tensor, " axis"]
    """The share of the total variance along each axis."""


def pca(vectors: Float[Tensor, "point d_model"], n_axes: int | None = None) -> Pca:
    """Compute the first `n_axes` principal axes (at most as many as there are points or dimensions).

    Large inputs use the eigenvectors of the covariance, computed in single precision, instead of an SVD.
    """
    is_large = vectors.numel() > MAX_DOUBLE_VALUES
    exact = vectors if is_large else vectors.double()
    mean = exact.mean(dim=0)
    centred = exact - mean  # [point, d_model]
    if is_large:
        values, columns = torch.linalg.eigh((centred.T @ centred).double())  # ascending
        variance, axes = values.flip(0).clamp(min=0), columns.T.flip(0)[:n_axes]
    else:
        _, s, axes = torch.linalg.svd(centred, full_matrices=False)
        variance, axes = s.square(), axes[:n_axes]
    axes = axes * torch.where(axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) < 0, -1.0, 1.0)
    points = (centred @ axes.T.to(centred.dtype)).double()
    return Pca(mean.double(), axes, points, (variance / variance.sum()).nan_to_num(0.0)[:n_axes])


N_SHUFFLES = 999

MAX_COMPARED = 2_048
"""From more tokens, this many evenly spaced ones are compared, each with all tokens."""


@dataclass(frozen=True)
class Nearness:
    """The share of tokens whose nearest other token is of the requested kind, next to the shares under shuffled labels."""

    share: float
    chance: float
    """The mean share over shuffles of the labels."""
    most_by_chance: float
    """The highest share in any of the `N_SHUFFLES` shuffles."""
    n_compared: int
    """The number of tokens examined, `MAX_COMPARED` at most."""

    @property
    def is_above_chance(self) -> bool:
        return self.share > self.most_by_chance


def numbers_in_order(vectors: Float[Tensor, "number d_model"]) -> Nearness:
    """Measure for how many numbers the nearest other number, by cosine, is one more or one less."""
    n = len(vectors)
    if n < 2:
        return Nearness(0.0, 0.0, 1.0, n)
    tokens, nearest = _nearest(vectors)
    shares = [((names[:, nearest] - names[:, tokens]).abs() == 1).double().mean(dim=1) for names in _label_orders(n)]
    return _nearness(shares, len(tokens))


def kinds_together(vectors: Float[Tensor, "token d_model"], kinds: Mapping[str, Sequence[int]]) -> dict[str, Nearness]:
    """Measure for each kind (given as rows of `vectors`) how many of its tokens have a nearest other token of the same kind."""
    n = len(vectors)
    tokens, nearest = _nearest(vectors)
    inside = {kind: torch.isin(torch.arange(n), torch.tensor([*rows]).long()) for kind, rows in kinds.items()}
    shares: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    for names in _label_orders(n):
        for kind, is_one in inside.items():
            of_kind, beside = is_one[names[:, tokens]], is_one[names[:, nearest]]  # [1 + shuffle, compared]
            shares[kind].append((of_kind & beside).sum(dim=1).double() / of_kind.sum(dim=1).clamp(min=1))
    return {kind: _nearness(found, len(tokens)) for kind, found in shares.items()}


def places_side_by_side(cosine: Float[Tensor, "patch patch"]) -> Nearness:
    """Measure for how many patches of an image the most similar other patch is adjacent: above, below, left or right."""
    n = len(cosine)
    side = math.isqrt(n)
    nearest = cosine.clone().fill_diagonal_(-math.inf).argmax(dim=1)
    shares = []
    for place in _label_orders(n):  # [order, patch]: its place in this order
        other = place[:, nearest]
        beside = (place // side - other // side).abs() + (place % side - other % side).abs() == 1
        shares.append(beside.double().mean(dim=1))
    return _nearness(shares, n)


def _nearest(vectors: Float[Tensor, "token d_model"]) -> tuple[Int[Tensor, " compared"], Int[Tensor, " compared"]]:
    """Return up to `MAX_COMPARED` tokens and the nearest other token of each."""
    tokens, nearest = evenly(len(vectors), MAX_COMPARED), []
    directions = torch.nn.functional.normalize(vectors.double(), dim=-1)
    for some in tokens.split(max(1, BLOCK_BYTES // (8 * len(vectors)))):
        cosine = directions[some] @ directions.T
        cosine[torch.arange(len(some)), some] = -math.inf
        nearest.append(cosine.argmax(dim=1))
    return tokens, torch.cat(nearest)


def _label_orders(n: int) -> Iterator[Int[Tensor, "order token"]]:
    """Yield the labels of the tokens in order, then shuffled `N_SHUFFLES` times, in blocks of `BLOCK_BYTES`."""
    yield torch.arange(n)[None]
    generator, at_once = torch.Generator().manual_seed(0), max(1, BLOCK_BYTES // (32 * n))
    for done in range(0, N_SHUFFLES, at_once):
        yield torch.rand(min(at_once, N_SHUFFLES - done), n, generator=generator).argsort(dim=-1)


def _nearness(blocks: Sequence[Float[Tensor, " order"]], n_compared: int) -> Nearness:
    """Build the result from the share for the true order, which comes first, and those for the shuffles."""
    shares = torch.cat([*blocks])
    return Nearness(shares[0].item(), shares[1:].mean().item(), shares[1:].max().item(), n_compared)
