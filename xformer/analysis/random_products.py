"""Why the scores are divided by √d: what products of random vectors are like, and what a softmax makes of them.

Var(q · k) = d, so Var(q · k / √d) = 1                          Vaswani et al. 2017, §3.2.1, footnote 4
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

N_PAIRS, N_QUERIES, N_KEYS = 2000, 200, 8
"""How many products, and how many rows of how many keys, are drawn."""
WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
SCALED, RAW = "with 1/√d", "without"


def product_variances(*, widths: Sequence[int] = WIDTHS, samples: int = N_PAIRS, seed: int = 0) -> pd.DataFrame:
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


def softmax_saturation(
    *, widths: Sequence[int] = WIDTHS, n_keys: int = N_KEYS, samples: int = N_QUERIES, seed: int = 0
) -> pd.DataFrame:
    """The softmax over `n_keys` random products, with the scale and without, at each width; means over `samples` queries.

    Columns: d, scale, largest (the largest weight), gradient (the largest entry of the softmax's Jacobian).
    """
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(samples, 1, max(widths), generator=draw)
    k = torch.randn(samples, n_keys, max(widths), generator=draw)
    sums = (q * k).cumsum(dim=-1)  # [sample, key, d]
    rows = []
    for d in widths:
        for scale, divisor in ((SCALED, math.sqrt(d)), (RAW, 1.0)):
            weights = (sums[..., d - 1] / divisor).softmax(dim=-1)  # [sample, key]
            gradient = softmax_jacobian(weights).flatten(1).amax(dim=1)  # [sample]
            rows.append((d, scale, weights.amax(dim=1).mean().item(), gradient.mean().item()))
    return pd.DataFrame(rows, columns=["d", "scale", "largest", "gradient"])


def softmax_row(*, d: int, scaled: bool = True, n_keys: int = N_KEYS, seed: int = 0) -> pd.DataFrame:
    """One random query with `n_keys` random keys of width d: key, score, weight."""
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(max(WIDTHS), generator=draw), torch.randn(n_keys, max(WIDTHS), generator=draw)
    scores = k[:, :d] @ q[:d] / (math.sqrt(d) if scaled else 1.0)
    return pd.DataFrame({"key": range(n_keys), "score": scores.tolist(), "weight": scores.softmax(dim=-1).tolist()})
