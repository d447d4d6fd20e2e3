"""Bugs of the softmax: over the wrong axis, scaled at the wrong time or not at all, over nothing."""

from __future__ import annotations

import math

from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.config import ModelConfig
from xformer.layers.attention import Attention, Scores
from xformer.layers.masks import Mask


class OverQueries(Attention):
    """softmax(S, dim=-2). Masked cells are put to 0; a column of nothing but −∞ would be NaN otherwise."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden.all(dim=-2, keepdim=True), 0.0).softmax(dim=-2).masked_fill(hidden, 0.0)


class OverHeads(Attention):
    """softmax(S, dim=1). Masked cells are put to 0, because the softmax of nothing but −∞ is NaN."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        hidden = scores.isneginf()
        return scores.masked_fill(hidden, 0.0).softmax(dim=1).masked_fill(hidden, 0.0)


class Unscaled(Attention):
    """S = Q Kᵀ."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k, v) * math.sqrt(self.d_head)


class ScaledAfter(Unscaled):
    """A = softmax(Q Kᵀ) / √d_head."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return super().softmax(scores, mask) / math.sqrt(self.d_head)


class OverNothing(Attention):
    """softmax(S) as it stands, which is 0/0 for a query whose every key is masked."""

    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        return scores.softmax(dim=-1)


def _wide(config: ModelConfig) -> bool:
    return config.d_head > 1


_RIGHT = "A = softmax over keys (Q Kᵀ / √d_head)"

SOFTMAX_BUGS = (
    Bug(
        "softmax-over-queries",
        "Softmax over the wrong axis",
        "The softmax is taken along the queries (dim=-2), so each key shares itself out and no query's weights sum to 1.",
        "a notebook rebuilding the paper from its text: both axes of the scores are equally long, so dim=-2 raises no error",
        "A[i, j] = exp S[i, j] / Σᵢ exp S[i, j]",
        "A[i, j] = exp S[i, j] / Σⱼ exp S[i, j]",
        "Columns sum to 1 and rows do not: with a causal mask the last token of a row is alone in its column.",
        "no more than attention",
        lambda model: replace_modules(model, Attention, OverQueries),
        decides=("what the softmax runs over",),
    ),
    Bug(
        "softmax-over-heads",
        "Softmax over the heads",
        "The softmax is taken along the axis of the heads (dim=1), so the heads compete and the keys do not.",
        "code whose scores gained an axis for the heads while the softmax kept its old dim=1",
        "A[h, i, j] = exp S[h, i, j] / Σₕ exp S[h, i, j]",
        "A[h, i, j] = exp S[h, i, j] / Σⱼ exp S[h, i, j]",
        "In every cell the heads' weights sum to 1; a row sums to about the number of keys over the number of heads.",
        "at least two heads",
        lambda model: replace_modules(model, Attention, OverHeads),
        lambda config: config.n_heads > 1,
        decides=("what the softmax runs over",),
    ),
    Bug(
        "scaled-after-softmax",
        "Scaling after the softmax",
        "The division by √d_head comes after the softmax instead of before it.",
        "the same notebook: a bracket closed too early, softmax(q @ k.T, …) / √d",
        "A = softmax(Q Kᵀ) / √d_head",
        _RIGHT,
        "Every row sums to 1/√d_head, and the pattern is as sharp as without any scale.",
        "d_head above 1",
        lambda model: replace_modules(model, Attention, ScaledAfter),
        _wide,
        decides=("where the scale is",),
    ),
    Bug(
        "no-scale",
        "No scale",
        "The scores are not divided by √d_head, so their spread grows with the width of a head.",
        "introductions that explain self-attention as softmax(x xᵀ) x and never come back to the scale",
        "A = softmax(Q Kᵀ)",
        _RIGHT,
        "Sharper patterns than meant from the first step on; the softmax saturates and passes little gradient.",
        "d_head above 1",
        lambda model: replace_modules(model, Attention, Unscaled),
        _wide,
        decides=("where the scale is",),
    ),
    Bug(
        "softmax-of-nothing",
        "Softmax over nothing",
        "A query that may look at no key (padding, or the first token when it may not see itself) gets softmax(−∞, …, −∞).",
        "masks that remove a token's own position, or padding that masks queries as well as keys",
        "A = exp(−∞) / Σ exp(−∞) = 0 / 0 = NaN",
        "A = 0 for a query that may look at nothing",
        "One row of NaN in the first layer; as values they reach every token in the next, because 0 · NaN is NaN.",
        "no more than attention; it shows where a row is empty, as with padding",
        lambda model: replace_modules(model, Attention, OverNothing),
        shows="with padding",
        decides=("what the softmax runs over", "whether a row can be empty"),
    ),
)
