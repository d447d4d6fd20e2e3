"""How attention comes about, one small computation a step, on a few words whose vectors are short enough to be read.

average     Y = softmax(X Xᵀ) X                              no parameters: each word becomes a mean of all words
q, k, v     Y = softmax(Q Kᵀ / √d) V,   Q = X W_Q, …          Vaswani et al. 2017, §3.2.1
scale       Var(q · k) = d, so Var(q · k / √d) = 1            ibid., footnote 4
mask        S[i, j] = −∞ for j > i                            ibid., §3.2.3
heads       concat(head₁ … headₕ) W_O                         ibid., §3.2.2
position    f(P X) = P f(X) for every permutation P
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from xformer.errors import InputError
from xformer.layers.masks import causal_mask

MOST_WORDS, LONGEST_WORD = 8, 14
Matrix = Float[Tensor, "row column"]


def words_of(text: str) -> list[str]:
    """The words of a sentence. Raises `InputError` where there are fewer than two, more than eight, or one is too long."""
    words = text.split()
    if not 2 <= len(words) <= MOST_WORDS:
        raise InputError(
            f"A sentence here has 2 to {MOST_WORDS} words, so that every number can be read; this one has {len(words)}. "
            "For example: the cat saw the dog."
        )
    if long := [word for word in words if len(word) > LONGEST_WORD]:
        raise InputError(
            f"A word here has at most {LONGEST_WORD} letters; “{long[0][:LONGEST_WORD]}…” has {len(long[0])}."
        )
    return words


def word_vectors(words: Sequence[str], d: int, seed: int = 0) -> Float[Tensor, "pos d_model"]:
    """A vector of d numbers from N(0, 1) for each word: the same word and seed always have the same one."""
    drawn = {}
    for word in words:
        draw = torch.Generator().manual_seed(zlib.crc32(word.encode("utf-8", "replace")) + 7919 * seed)
        drawn[word] = torch.randn(d, generator=draw)
    return torch.stack([drawn[word] for word in words])


def learned_matrices(d: int, seed: int = 0, names: str = "QKV") -> list[Float[Tensor, "d_model d_model"]]:
    """One matrix a name, standing for learned ones: from N(0, 1/d), so that what goes in and what comes out spread alike."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(d, d, generator=draw) / math.sqrt(d) for _ in names]


@dataclass(frozen=True, eq=False)
class Mixed:
    """One attention with all that it computes on the way."""

    q: Float[Tensor, "pos d_head"]
    k: Float[Tensor, "pos d_head"]
    v: Float[Tensor, "pos d_value"]
    scores: Float[Tensor, "query key"]
    weights: Float[Tensor, "query key"]
    out: Float[Tensor, "query d_value"]


def average(x: Float[Tensor, "pos d_model"]) -> Mixed:
    """softmax(X Xᵀ) X: every word asks with its own vector, is found by it, and is mixed in as it is."""
    scores = x @ x.T
    weights = scores.softmax(dim=-1)
    return Mixed(x, x, x, scores, weights, weights @ x)


def attend(q: Matrix, k: Matrix, v: Matrix, *, causal: bool = False) -> Mixed:
    """softmax(Q Kᵀ / √d) V, with −∞ in place of the scores of later keys where it is causal."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(~causal_mask(len(q), len(k)), float("-inf"))
    weights = scores.softmax(dim=-1)
    return Mixed(q, k, v, scores, weights, weights @ v)


def projected(x: Matrix, matrices: Sequence[Matrix], *, causal: bool = False) -> Mixed:
    """`attend` with Q = X W_Q, K = X W_K, V = X W_V."""
    q, k, v = (x @ matrix for matrix in matrices)
    return attend(q, k, v, causal=causal)


def ways_to_mask(scores: Float[Tensor, "query key"]) -> dict[str, Float[Tensor, "query key"]]:
    """The weights of unmasked scores, and what three ways of forbidding later keys make of them; the first is the right one."""
    allowed = causal_mask(*scores.shape)
    return {
        "no mask": scores.softmax(dim=-1),
        "−∞ before the softmax": scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1),
        "0 after the softmax": scores.softmax(dim=-1).masked_fill(~allowed, 0.0),
        "0 before the softmax": scores.masked_fill(~allowed, 0.0).softmax(dim=-1),
    }


def product_variances(widths: Sequence[int], samples: int, seed: int = 0) -> pd.DataFrame:
    """The measured variance of q · k and of q · k / √d, one row a width, q and k drawn from N(0, 1) just now.

    For independent entries of mean 0 and variance 1, Var(qᵢ kᵢ) = E[qᵢ²] E[kᵢ²] − 0 = 1, and the d summands are
    independent, so Var(q · k) = d. A sample variance of n products scatters by d √((2 + 6/d) / n), because the products
    have the excess kurtosis 6/d; `error` is that. The widths share their draws, so neighbours err together.
    """
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(samples, max(widths), generator=draw, dtype=torch.float64) for _ in "qk")
    sums = (q * k).cumsum(dim=1)  # [sample, d]
    variance = torch.stack([sums[:, d - 1].var() for d in widths])  # [width]
    d = torch.tensor(widths, dtype=torch.float64)
    error = d * ((2 + 6 / d) / samples).sqrt()
    return pd.DataFrame(
        {"d": list(widths), "variance": variance.tolist(), "scaled": (variance / d).tolist(), "error": error.tolist()}
    )


def softmax_jacobian(weights: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key key"]:
    """∂pᵢ/∂sⱼ = pᵢ (δᵢⱼ − pⱼ). Its largest entry is on the diagonal, p (1 − p), never above 1/4."""
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


def saturation(widths: Sequence[int], n_keys: int, samples: int, seed: int = 0) -> pd.DataFrame:
    """The softmax over `n_keys` random products, with the scale and without, at each width; means over `samples` queries.

    Columns: d, scale, largest (the largest weight), gradient (the largest entry of the softmax's Jacobian).
    """
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(samples, 1, max(widths), generator=draw)
    k = torch.randn(samples, n_keys, max(widths), generator=draw)
    sums = (q * k).cumsum(dim=-1)  # [sample, key, d]
    rows = []
    for d in widths:
        for scale, divisor in (("with 1/√d", math.sqrt(d)), ("without", 1.0)):
            weights = (sums[..., d - 1] / divisor).softmax(dim=-1)  # [sample, key]
            gradient = softmax_jacobian(weights).flatten(1).amax(dim=1)  # [sample]
            rows.append((d, scale, weights.amax(dim=1).mean().item(), gradient.mean().item()))
    return pd.DataFrame(rows, columns=["d", "scale", "largest", "gradient"])


def one_row(d: int, n_keys: int, *, scaled: bool, seed: int = 0) -> tuple[Float[Tensor, " key"], Float[Tensor, " key"]]:
    """The scores and the weights of one random query with `n_keys` random keys of width d."""
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(512, generator=draw), torch.randn(n_keys, 512, generator=draw)
    scores = k[:, :d] @ q[:d] / (math.sqrt(d) if scaled else 1.0)
    return scores, scores.softmax(dim=-1)


def split_heads(x: Matrix, matrices: Sequence[Matrix], n_heads: int) -> list[Mixed]:
    """The heads of d_model / h dimensions each: head i has the i-th slice of the columns of Q, K and V."""
    q, k, v = ((x @ matrix).chunk(n_heads, dim=1) for matrix in matrices)
    return [attend(*slices) for slices in zip(q, k, v, strict=True)]


def multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> dict[str, int]:
    """How often multi-head attention multiplies two numbers, from its shapes alone, part by part (biases, softmax left out)."""
    wide = n_heads * d_head
    return {
        "Q, K, V = X W": 3 * n * d_model * wide,
        "Q Kᵀ": n_heads * n * n * d_head,
        "A V": n_heads * n * n * d_head,
        "out = Z W_O": n * wide * d_model,
    }


def measured_multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> int:
    """The same number, counted by torch while the multiplications are carried out (on shapes without numbers in them).

    A FLOP count takes each multiplication and its addition for two.
    """

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    with FlopCounterMode(display=False) as counter:
        x = tensor(n, d_model)
        q, k, v = (x @ tensor(d_model, n_heads * d_head) for _ in "qkv")
        q, k, v = (y.view(n, n_heads, d_head).transpose(0, 1) for y in (q, k, v))  # [head, pos, d_head]
        z = (q @ k.mT).softmax(dim=-1) @ v  # [head, pos, d_head]
        _ = z.transpose(0, 1).reshape(n, n_heads * d_head) @ tensor(n_heads * d_head, d_model)
    return counter.get_total_flops() // 2


def costs(n: int, d_model: int, n_heads: int) -> pd.DataFrame:
    """One head, h heads that share d_model, and h heads each as wide as d_model: multiplications by part, and as measured.

    Columns: heads, part, count, measured (of the whole layer).
    """
    kinds = {
        "one head of d": (1, d_model),
        "h heads of d/h": (n_heads, d_model // n_heads),
        "h heads of d": (n_heads, d_model),
    }
    rows = []
    for name, (heads, width) in kinds.items():
        measured = measured_multiplications(n, d_model, heads, width)
        rows += [(name, part, count, measured) for part, count in multiplications(n, d_model, heads, width).items()]
    return pd.DataFrame(rows, columns=["heads", "part", "count", "measured"])


def order_error(f: Callable[[Matrix], Matrix], x: Matrix, order: Sequence[int]) -> float:
    """max |f(P x) − P f(x)|: 0 but for rounding where f does not know the order of its rows."""
    index = torch.tensor(order)
    return (f(x[index]) - f(x)[index]).abs().max().item()


def matrix_frame(matrix: Matrix, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """One row per cell of a matrix: row, column, value."""
    cells = [
        (row, column, value)
        for row, values in zip(rows, matrix.tolist(), strict=True)
        for column, value in zip(columns, values, strict=True)
    ]
    return pd.DataFrame(cells, columns=["row", "column", "value"])


def numbered(words: Sequence[str]) -> list[str]:
    """The words with their positions in front, so that repeats stay distinct."""
    return [f"{position} {word}" for position, word in enumerate(words)]


def weighted_sum(mixed: Mixed, query: int, words: Sequence[str]) -> str:
    """One row of the weights as the sum that it stands for: "y₁ = 0.12 · x₀ the + …"."""
    parts = [
        f"{weight:.3f} · {word}" for weight, word in zip(mixed.weights[query].tolist(), numbered(words), strict=True)
    ]
    return f"new {numbered(words)[query]} = {' + '.join(parts)}"
