"""What vector each token becomes, and which vectors are alike: the vectors of an input, and those of the whole vocabulary.

    enters layer 1 = E[token] (times √d_model where the model says so) + P[position]      (Vaswani et al. 2017, §3.4–3.5)

`stack` chooses the side of an encoder-decoder: the encoder reads the source, the decoder the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.geometry import Pca, cosine_matrix, cosines_with, pca
from xformer.memory import check_analysis
from xformer.reading import Reading
from xformer.subjects import Subject

WORDS_OUT = ("next_token", "masked_token", "pair_next_token")
"""The outputs of external models that are the tokens they read."""


def vocabulary_vectors(reading: Reading, stack: str | None = None) -> Float[Tensor, "vocab d_model"]:
    """The vector of every token, as a stack receives it; of a model of others as its table has it.

    Raises `InputError` for a model of images, `UnavailableError` where there is no table.
    """
    return reading.subject.weights.token_embedding(stack)


def token_labels(subject: Subject) -> tuple[str, ...]:
    """What each token that a model reads is called. The outputs of a model that is no language model have other names."""
    if getattr(subject, "output", "next_token") in WORDS_OUT:
        return tuple(subject.labels)
    return subject.names(torch.arange(subject.shape.n_inputs))


def input_vectors(reading: Reading, stack: str | None = None) -> dict[str, Float[Tensor, "pos d_model"]]:
    """What the vectors of the first input are made of, part by part: "tokens", "positions", and their "sum", which is what
    layer 1 really received. A model that adds no positions has only the first.
    """
    stack = (stack or "encoder") if reading.is_pair else reading.output_stack
    at = f"{stack}." if reading.is_pair else ""
    parts = {"tokens": reading[f"{at}embed"][0]}  # [pos, d_model]
    if f"{at}pos_embed" in reading:
        added = reading[f"{at}pos_embed"]  # [pos, d_model], or [batch, pos, d_model] where rows differ
        parts["positions"] = added if added.dim() == 2 else added[0]
        parts["sum"] = reading[f"{stack}.0.resid_pre"][0]
    return parts


def vectors(
    reading: Reading, *, part: str = "tokens", stack: str | None = None, positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """One part of `input_vectors` at some positions (all by default), one row a number: position, token, dimension, value."""
    chosen, labels, found = _part(reading, part, stack, positions)
    return vector_table(found, labels, chosen)


def cosines(
    reading: Reading, *, part: str = "tokens", stack: str | None = None, positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """How alike the same vectors are, one row a pair: position, token, other position, other token, cosine.

    Raises `InputError` where there are too many pairs.
    """
    chosen, labels, found = _part(reading, part, stack, positions)
    check_analysis("cosines", "name some positions", n=len(chosen))
    one, other = (index.flatten() for index in np.indices((len(chosen), len(chosen))))
    places, names = np.array(chosen), np.array(labels, dtype=object)
    return pd.DataFrame(
        {
            "position": places[one],
            "token": names[one],
            "other position": places[other],
            "other token": names[other],
            "cosine": cosine_matrix(found).flatten().numpy(),
        }
    )


def principal_axes(reading: Reading, stack: str | None = None) -> Pca:
    """The three directions in which the vectors of the vocabulary differ most."""
    return pca(vocabulary_vectors(reading, stack), 3)


def projection(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """The vocabulary along its `principal_axes`, one row a token: id, token, positions, PC1, PC2, PC3.

    `positions` says where it stands in the input: "0, 4", or "" where it does not; `attrs["explained"]` has the share of the
    variance along each axis.
    """
    where: dict[int, list[str]] = {}
    for position, token in enumerate(reading.ids(stack)):
        where.setdefault(token, []).append(str(position))
    axes = principal_axes(reading, stack)
    points = axes.points
    labels = _as_many(token_labels(reading.subject), len(points))
    table = pd.DataFrame({"id": range(len(labels)), "token": labels})
    table["positions"] = [", ".join(where.get(token, [])) for token in range(len(labels))]
    found = table.join(pd.DataFrame(points.numpy(), columns=[f"PC{axis + 1}" for axis in range(points.shape[1])]))
    found.attrs["explained"] = axes.explained.tolist()
    return found


def neighbours(reading: Reading, *, token: int, stack: str | None = None, n: int = 8) -> pd.DataFrame:
    """The `n` tokens whose vectors point most nearly the way of a token's: id, token, cosine, distance; itself left out."""
    every = vocabulary_vectors(reading, stack)
    labels = _as_many(token_labels(reading.subject), len(every))
    alike = cosines_with(every, token)  # [vocab]
    alike[token] = -math.inf
    chosen = alike.topk(min(n, len(labels) - 1)).indices
    distance = (every[chosen].double() - every[token].double()).norm(dim=-1)
    return pd.DataFrame(
        {
            "id": chosen.tolist(),
            "token": [labels[i] for i in chosen.tolist()],
            "cosine": alike[chosen].tolist(),
            "distance": distance.tolist(),
        }
    )


def _as_many(labels: Sequence[str], n: int) -> list[str]:
    """The names of `n` rows: a table may have more of them than the model says tokens, or fewer."""
    return [*labels[:n], *(f"#{row}" for row in range(len(labels), n))]


def vector_table(
    vectors: Float[Tensor, "pos d_model"], labels: Sequence[str], positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """Any vectors, one row a number: position, token, dimension, value."""
    n_pos, d_model = vectors.shape
    index = np.arange(n_pos).repeat(d_model)
    return pd.DataFrame(
        {
            "position": np.arange(n_pos)[index] if positions is None else np.array(positions)[index],
            "token": np.array(labels, dtype=object)[index],
            "dimension": np.tile(np.arange(d_model), n_pos),
            "value": vectors.flatten().double().numpy(),
        }
    )


def _part(
    reading: Reading, part: str, stack: str | None, positions: Sequence[int] | None
) -> tuple[list[int], list[str], Float[Tensor, "pos d_model"]]:
    """The positions that are wanted, what stands there, and one part of their vectors."""
    found, tokens = input_vectors(reading, stack)[part], reading.tokens_of(stack)
    chosen = list(range(len(found)) if positions is None else positions)
    return chosen, [tokens[position] for position in chosen], found[chosen]
