"""Splitting and merging heads, and multi-head attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, Wrong, module_with, normal, weights_of, wrong
from xformer.assignments.tasks.attention import attention_of


def split_heads_of(
    x: Float[Tensor, "batch pos d_model"], n_heads: int, *, order: str = "usual"
) -> Float[Tensor, "batch head pos d_head"]:
    """Split the features into heads; `order` makes it wrong."""
    batch, n, width = x.shape
    return {
        "usual": lambda: x.view(batch, n, n_heads, -1).transpose(1, 2),
        "reshape": lambda: x.reshape(batch, n_heads, n, -1),
        "interleaved": lambda: x.view(batch, n, -1, n_heads).permute(0, 3, 1, 2),
        "no_transpose": lambda: x.view(batch, n, n_heads, -1),
        "features": lambda: x.view(batch, n, n_heads, -1).permute(0, 2, 3, 1),
        "batch_mixed": lambda: x.reshape(n_heads, batch, n, width // n_heads).transpose(0, 1),
    }[order]()


def merge_heads_of(
    x: Float[Tensor, "batch head pos d_head"], *, order: str = "usual"
) -> Float[Tensor, "batch pos d_model"]:
    """Join the heads of each position; `order` makes it wrong."""
    batch, head, n, d_head = x.shape
    return {
        "positions_first": lambda: x.flatten(2),
        "usual": lambda: x.transpose(1, 2).reshape(batch, n, head * d_head),
        "reshape": lambda: x.reshape(batch, n, head * d_head),
        "interleaved": lambda: x.permute(0, 2, 3, 1).reshape(batch, n, head * d_head),
        "transposed_twice": lambda: x.transpose(2, 3).reshape(batch, n, head * d_head),
        "features_first": lambda: x.permute(0, 3, 2, 1).reshape(batch, n, head * d_head),
        "mean": lambda: x.mean(dim=1),
        "sum": lambda: x.sum(dim=1),
    }[order]()


_SPLIT = "x.view(batch, n, n_heads, d_head).transpose(1, 2)"
_MERGE = "x.transpose(1, 2).reshape(batch, n, n_heads * d_head)"
_SPLITS = [
    wrong("split_without_transpose", _SPLIT, order="reshape"),
    wrong("heads_interleaved", _SPLIT, order="interleaved"),
    wrong("attention_over_heads", _SPLIT, "the heads are behind the positions, so that heads attend to each other",
          order="no_transpose", is_missing=True),
    wrong("split_axes_swapped", _SPLIT, "the features of a head are before its positions", order="features"),
    wrong("split_without_transpose", _SPLIT, "the features are split across the texts of the batch", order="batch_mixed"),
]  # fmt: skip
_MERGES = [
    wrong("merge_without_transpose", _MERGE, order="reshape"),
    wrong("merge_without_transpose", _MERGE, "features and positions are exchanged before the heads are merged",
          order="transposed_twice"),
    wrong("merge_without_transpose", _MERGE, "features and positions are exchanged before the heads are merged",
          order="features_first"),
    wrong("heads_interleaved", _MERGE, order="interleaved"),
    wrong("heads_averaged", _MERGE, order="mean"),
    wrong("heads_averaged", _MERGE, order="sum"),
]  # fmt: skip
SPLIT_AND_MERGE_HEADS = AssignmentTask(
    "split_and_merge_heads",
    "Split and merge heads",
    [
        TaskPart(
            "split_heads",
            split_heads_of,
            lambda: [
                TaskCase("x [2, 5, 21], 3 heads", {"x": normal(1, 2, 5, 21), "n_heads": 3}),
                TaskCase("as many positions as heads", {"x": normal(2, 2, 3, 15), "n_heads": 3}),
                TaskCase("as many texts as heads", {"x": normal(3, 3, 5, 21), "n_heads": 3}),
                TaskCase("one head", {"x": normal(4, 2, 5, 7), "n_heads": 1}),
            ],
            {"output": "batch head pos d_head"},
            "split_heads(x, h)[b, 0, p] should be the first features of x[b, p].",
            _SPLITS,
        ),
        TaskPart(
            "merge_heads",
            merge_heads_of,
            lambda: [
                TaskCase("x [2, 3, 5, 7]", {"x": normal(1, 2, 3, 5, 7)}),
                TaskCase("as many positions as heads", {"x": normal(2, 2, 3, 3, 7)}),
                TaskCase("not contiguous", {"x": normal(3, 2, 5, 3, 7).transpose(1, 2)}),
                TaskCase("one head", {"x": normal(4, 2, 1, 5, 7)}),
            ],
            {"output": "batch pos d_model"},
            "merge_heads(split_heads(x, h)) should be x.",
            _MERGES,
        ),
    ],
)


class MultiHeadAttentionOf(nn.Module):
    """Multi-head attention; the keyword arguments make it wrong.

    Args:
        d_model: The number of features.
        n_heads: The number of heads.
        sources: The projections that queries, keys and values come from.
        split: The order of `split_heads_of`.
        merge: The order of `merge_heads_of`.
        projected: Whether the output projection is applied.
        passes_mask: Whether the mask reaches the attention.
        attention: Arguments of `attention_of`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        sources: tuple[str, str, str] = ("query", "key", "value"),
        split: str = "usual",
        merge: str = "usual",
        projected: bool = True,
        passes_mask: bool = True,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))
        self.sources, self.split, self.merge = sources, split, merge
        self.projected, self.passes_mask, self.attention = projected, passes_mask, attention

    def heads(self, x: Float[Tensor, "batch pos d_model"]) -> list[Float[Tensor, "batch head pos d_head"]]:
        """Return queries, keys and values, split into heads."""
        made = (x if name == "x" else getattr(self, name)(x) for name in self.sources)
        return [split_heads_of(one, self.n_heads, order=self.split) for one in made]

    def joined(self, z: Float[Tensor, "batch head pos d_head"]) -> Float[Tensor, "batch pos d_model"]:
        """Merge the heads, and project them."""
        merged = merge_heads_of(z, order=self.merge)
        return self.output(merged) if self.projected else merged

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "#batch #head #query #key"] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Attend, with a mask that is True where attention is allowed."""
        q, k, v = self.heads(x)
        return self.joined(attention_of(q, k, v, mask if self.passes_mask else None, **self.attention)[0])


def apply_module(module: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a module with the inputs of a case."""
    return {"output": module(*(one for name, one in inputs.items() if name not in ("sizes", "weights")))}


def with_weights(make: Callable[..., nn.Module], seed: int, *sizes: int, **inputs: Any) -> dict[str, Any]:
    """Return the inputs of a case with seeded weights for a module of these sizes."""
    return {"sizes": sizes, "weights": weights_of(make, seed, *sizes), **inputs}


class AroundModule(nn.Module):
    """A causal model of tokens that adds the output of a module to its input."""

    def __init__(self, module: Callable[..., Any], d_model: int, *, adds: bool = True) -> None:
        super().__init__()
        self.embed, self.module, self.head, self.adds = nn.Embedding(29, d_model), module, nn.Linear(d_model, 29), adds

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """Return logits."""
        x, n = self.embed(tokens), tokens.shape[1]
        made = self.module(x, torch.ones(n, n, dtype=torch.bool).tril())
        return self.head(x + made if self.adds else made)


def _cases() -> list[TaskCase]:
    causal, make = torch.ones(5, 5).tril().bool(), MultiHeadAttentionOf
    keys = torch.arange(5) < torch.tensor([5, 3])[:, None, None, None]
    return [
        TaskCase("d_model 21, 3 heads, 5 positions", with_weights(make, 1, 21, 3, x=normal(1, 2, 5, 21))),
        TaskCase("a causal mask", with_weights(make, 2, 21, 3, x=normal(2, 2, 5, 21), mask=causal)),
        TaskCase("a padding mask", with_weights(make, 3, 21, 3, x=normal(3, 2, 5, 21), mask=keys)),
        TaskCase(
            "as many positions as heads", with_weights(make, 4, 14, 2, x=normal(4, 3, 2, 14), mask=causal[:2, :2])
        ),
        TaskCase("the gradients", with_weights(make, 5, 21, 3, x=normal(5, 2, 5, 21), mask=causal), with_gradient=True),
    ]


_ROOT = "/ math.sqrt(d_head), the features of one head"
_THREE = "self.query(x), self.key(x), self.value(x)"


def _sources(what: str, *sources: str) -> Wrong:
    return wrong("shared_projection", _THREE, what, sources=sources)


_OF_ONE_SHAPE = ("split_without_transpose", "merge_without_transpose", "heads_interleaved")
"""The other mistakes of the functions cannot be multiplied with the output weights."""
MULTI_HEAD = [
    wrong("scale_by_d_model", _ROOT, scale=lambda q, k: 1 / math.sqrt(q.shape[-1] * q.shape[1])),
    wrong("scale_missing", _ROOT, scale=lambda q, k: 1.0, is_missing=True),
    wrong("scale_by_d_head", _ROOT, scale=lambda q, k: 1 / q.shape[-1]),
    wrong("scale_by_n_heads", _ROOT, scale=lambda q, k: 1 / math.sqrt(q.shape[1])),
    *(wrong(one.cause, one.how, one.what, split=one.change["order"]) for one in _SPLITS if one.cause in _OF_ONE_SHAPE),
    *(wrong(one.cause, one.how, one.what, merge=one.change["order"]) for one in _MERGES if one.cause in _OF_ONE_SHAPE),
    *(wrong("attention_over_heads", _SPLIT, "the heads are behind the positions, so that heads attend to each other",
            split="no_transpose", merge="positions_first", passes_mask=masks) for masks in (True, False)),
    _sources("one projection makes the queries and the keys", "query", "query", "value"),
    _sources("one projection makes the queries and the keys", "key", "key", "value"),
    _sources("one projection makes the keys and the values", "query", "key", "key"),
    _sources("one projection makes the keys and the values", "query", "value", "value"),
    wrong("query_key_swapped", _THREE, "queries and keys are exchanged", sources=("key", "query", "value")),
    wrong("query_key_swapped", _THREE, "keys and values are exchanged", sources=("query", "value", "key")),
    wrong("value_projection_missing", _THREE, "the input itself is used in place of the values",
          sources=("query", "key", "x")),
    wrong("output_projection_missing", "self.output(merge_heads(z))", "the output projection is not applied",
          projected=False, is_missing=True),
    wrong("mask_not_applied", "attention(q, k, v, mask)", "the mask is not passed to the attention", passes_mask=False,
          is_missing=True),
    wrong("softmax_over_queries", "softmax(scores, dim=-1)", dim=-2),
    wrong("softmax_over_heads", "softmax(scores, dim=-1)", dim=1),
    wrong("mask_inverted", "scores.masked_fill(~mask, -math.inf)", "the mask hides what it should show", masked="inverted"),
]  # fmt: skip
MULTI_HEAD_ATTENTION = AssignmentTask(
    "multi_head_attention",
    "Multi-head attention",
    [
        TaskPart(
            "MultiHeadAttention",
            MultiHeadAttentionOf,
            _cases,
            {"output": "batch pos d_model", "gradient of x": "batch pos d_model"},
            "Print the shapes: q, k and v are [batch, head, pos, d_head], and the result is [batch, pos, d_model].",
            MULTI_HEAD,
            apply_module,
            module_with,
            ("softmax", "attention", "split_heads", "merge_heads"),
            [{"scales": "queries"}],
            lambda module: AroundModule(module, 21),
            "softmax(q·kᵀ / √d_head)·v in each head, then the output projection",
        )
    ],
    needs=("attention", "split_and_merge_heads"),
)
