"""What vector each token becomes, and which vectors are alike: lengths, angles, principal axes, neighbours.

    enters layer 1 = E[token] (times √d_model where the model says so) + P[position]      (Vaswani et al. 2017, §3.4–3.5)
    cosine(a, b)   = a·b / (‖a‖ ‖b‖)
    PCA            X − mean = U S Vᵀ; a point's coordinates are the rows of U S, an axis explains the share sᵢ² / Σ s²

Everything is worked out in double precision from the model's own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import InputError
from xformer.layers.embedding import PatchEmbedding, TokenEmbedding
from xformer.model import Transformer
from xformer.trace import Trace

PARTS = ("tokens", "positions", "sum")
"""What a position's vector is made of; a model that adds no positions has only the first."""


def token_embedding(model: Transformer, stack: str = "encoder") -> TokenEmbedding:
    """The embedding that a stack reads its tokens with: an encoder-decoder may have one for each side."""
    if stack == "encoder" and model.source_embedding is not None:
        return model.source_embedding
    if isinstance(model.embedding, PatchEmbedding):
        raise InputError("A model of images looks no token up; see `patch_filters` for what it does with its patches.")
    return model.embedding


def vocabulary_vectors(model: Transformer, stack: str = "encoder") -> Float[Tensor, "vocab d_model"]:
    """The vector of every token, as a stack receives it."""
    embedding = token_embedding(model, stack)
    with torch.no_grad():
        return embedding(torch.arange(model.config.vocab_size, device=embedding.token.device)[None])[0]


def input_vectors(trace: Trace, stack: str | None = None) -> dict[str, Float[Tensor, "pos d_model"]]:
    """The vectors of the first input of a run, part by part; "sum" is what layer 1 really received.

    `stack` chooses the side of an encoder-decoder ("encoder": the source, "decoder": the target).
    """
    pair = trace.config.architecture == "encoder-decoder"
    stack = (stack or "encoder") if pair else trace.config.architecture
    at = f"{stack}." if pair else ""
    parts = {"tokens": trace[f"{at}embed"][0]}  # [pos, d_model]
    if f"{at}pos_embed" in trace:
        added = trace[f"{at}pos_embed"]  # [pos, d_model], or [batch, pos, d_model] where rows differ
        parts["positions"] = added if added.dim() == 2 else added[0]
        parts["sum"] = trace[f"{stack}.0.resid_pre"][0]
    return parts


def cosines(
    vectors: Float[Tensor, "a d_model"], others: Float[Tensor, "b d_model"] | None = None
) -> Float[Tensor, "a b"]:
    """The cosine of every vector with every other (with every one of `others`); 0 where one has no length."""
    a = torch.nn.functional.normalize(vectors.double(), dim=-1)
    b = a if others is None else torch.nn.functional.normalize(others.double(), dim=-1)
    return a @ b.T


def mean_cosines(vectors: Float[Tensor, "pos d_model"]) -> tuple[float, float]:
    """The mean cosine of two vectors that stand side by side, and of any two different ones. Takes two or more."""
    angle = cosines(vectors)
    n = len(angle)
    return angle.diagonal(1).mean().item(), ((angle.sum() - angle.trace()) / (n * (n - 1))).item()


def mean_alikeness(vectors: Float[Tensor, "n d_model"]) -> tuple[float, float]:
    """The mean |cosine| of two different vectors, and by how many standard errors it is above that of random directions.

    Of random directions, cosine² has mean 1/d, so |cosine| has variance 1/d − (mean |cosine|)²; different pairs are
    uncorrelated.
    """
    n, d_model = vectors.shape
    if n < 2 or d_model < 2:
        return 1.0, 0.0
    row, column = torch.triu_indices(n, n, offset=1)
    mean = cosines(vectors)[row, column].abs().mean().item()
    usual = random_cosine(d_model)
    return mean, (mean - usual) / math.sqrt((1 / d_model - usual**2) / len(row))


def random_cosine(d_model: int) -> float:
    """How large |cosine| is on average between random directions: Γ(d/2) / (√π Γ((d+1)/2)); 1 in one dimension."""
    return math.exp(math.lgamma(d_model / 2) - math.lgamma((d_model + 1) / 2)) / math.sqrt(math.pi)


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
    mean = vectors.double().mean(dim=0)
    centred = vectors.double() - mean  # [point, d_model]
    u, s, axes = torch.linalg.svd(centred, full_matrices=False)
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))  # [axis, 1]
    sign = torch.where(largest < 0, -1.0, 1.0)  # an axis has no direction of its own: make it the same every time
    total = s.square().sum()
    explained = s.square() / total if total > 0 else torch.zeros_like(s)
    return Pca(mean, (axes * sign)[:n_axes], (u * s * sign.T)[:, :n_axes], explained[:n_axes])


def vector_table(vectors: Float[Tensor, "pos d_model"], labels: Sequence[str], first: int = 0) -> pd.DataFrame:
    """One row per cell: position (that of the first vector is `first`), token, dimension, value."""
    n_pos, d_model = vectors.shape
    index = np.arange(n_pos).repeat(d_model)
    return pd.DataFrame(
        {
            "position": first + index,
            "token": np.array(labels, dtype=object)[index],
            "dimension": np.tile(np.arange(d_model), n_pos),
            "value": vectors.flatten().double().numpy(),
        }
    )


def cosine_table(vectors: Float[Tensor, "pos d_model"], labels: Sequence[str], first: int = 0) -> pd.DataFrame:
    """One row per pair of positions: position (from `first` on), token, other position, other token, cosine."""
    n = len(vectors)
    one, other = np.arange(n).repeat(n), np.tile(np.arange(n), n)
    names = np.array(labels, dtype=object)
    return pd.DataFrame(
        {
            "position": first + one,
            "token": names[one],
            "other position": first + other,
            "other token": names[other],
            "cosine": cosines(vectors).flatten().numpy(),
        }
    )


def projection_table(found: Pca, labels: Sequence[str], tokens: Sequence[int]) -> pd.DataFrame:
    """One row per token of the vocabulary: id, token, where it stands in the input ("0, 4"; "" nowhere), PC1, PC2, …"""
    where: dict[int, list[str]] = {}
    for position, token in enumerate(tokens):
        where.setdefault(token, []).append(str(position))
    table = pd.DataFrame({"id": range(len(labels)), "token": list(labels)})
    table["positions"] = [", ".join(where.get(token, [])) for token in range(len(labels))]
    for axis in range(found.points.shape[1]):
        table[f"PC{axis + 1}"] = found.points[:, axis].tolist()
    return table


def neighbours(vectors: Float[Tensor, "vocab d_model"], labels: Sequence[str], token: int, n: int = 8) -> pd.DataFrame:
    """The `n` tokens whose vectors point most nearly the same way: id, token, cosine, distance; the token itself left out."""
    alike = cosines(vectors[token : token + 1], vectors)[0]  # [vocab]
    alike[token] = -math.inf
    chosen = alike.topk(min(n, len(labels) - 1)).indices
    distance = (vectors[chosen].double() - vectors[token].double()).norm(dim=-1)
    return pd.DataFrame(
        {
            "id": chosen.tolist(),
            "token": [labels[i] for i in chosen.tolist()],
            "cosine": alike[chosen].tolist(),
            "distance": distance.tolist(),
        }
    )
