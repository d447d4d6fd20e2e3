"""Softmax, and scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, normal, unpacked, wrong

INF = math.inf


def _softmax(
    scores: Float[Tensor, "..."], dim: int = -1, *, subtract: str = "row", over: Any = "dim", divide: str = "sum"
) -> Float[Tensor, "..."]:
    """The softmax; `subtract` and `divide` say by what, `over` along which axis it is normalised."""
    over = dim if over == "dim" else over
    largest = {
        "row": lambda: scores.amax(dim=over, keepdim=True),
        "all": lambda: scores.max(),
        "mean": lambda: scores.mean(dim=over, keepdim=True),
        "nothing": lambda: torch.zeros(()),
    }[subtract]()
    powers = (scores - largest).exp()
    total = powers.sum() if over is None else powers.sum(dim=over, keepdim=True)
    return {
        "sum": lambda: powers / total,
        "nothing": lambda: powers,
        "raw": lambda: scores / scores.sum(dim=over, keepdim=True),
        "log": lambda: scores - largest - total.log(),
        "squares": lambda: powers / powers.square().sum(dim=over, keepdim=True).sqrt(),
        "sigmoid": scores.sigmoid,
    }[divide]()


def _softmax_cases() -> list[TaskCase]:
    apart = normal(3, 3, 5) + torch.tensor([[0.0], [300.0], [-300.0]])
    masked = normal(4, 2, 5, 7)
    masked[0, 1, 2:] = -INF
    return [
        TaskCase("scores [2, 3, 5, 7]", {"scores": normal(1, 2, 3, 5, 7)}),
        TaskCase("scores [5, 7] over the first axis", {"scores": normal(2, 5, 7), "dim": 0}),
        TaskCase("scores [2, 3, 5] over the axis 1", {"scores": normal(5, 2, 3, 5), "dim": 1}),
        TaskCase("scores up to 500", {"scores": normal(6, 3, 7, scale=200.0)}),
        TaskCase("rows that are 300 apart", {"scores": apart}),
        TaskCase("scores of −inf", {"scores": masked}),
        TaskCase("scores in float64", {"scores": normal(7, 3, 5).double()}),
    ]


_SHIFT = "scores - scores.max(dim=dim, keepdim=True).values, then exp"
_OVER = "exp / exp.sum(dim=dim, keepdim=True)"
SOFTMAX = AssignmentTask(
    "softmax",
    "Softmax",
    [
        TaskPart(
            "softmax",
            _softmax,
            _softmax_cases,
            {"output": "..."},
            "Add up the result along `dim`: each sum should be 1, also for scores of 500.",
            [
                wrong("softmax_overflows", _SHIFT, "the exponential of a large score is inf, and inf / inf NaN",
                      subtract="nothing"),
                wrong(
                    "softmax_max_of_all", _SHIFT,
                    "the largest of all scores is subtracted, so that rows far below it become 0 / 0", subtract="all",
                ),
                wrong(
                    "softmax_overflows", _SHIFT, "a score far above the mean that is subtracted overflows",
                    subtract="mean",
                ),
                wrong("softmax_wrong_axis", _OVER, "the sum is over all axes, not over `dim`", over=None, subtract="all"),
                wrong(
                    "softmax_wrong_axis", _OVER, "the sum is over all axes, not over `dim`", over=None,
                    subtract="nothing",
                ),
                *(
                    wrong("softmax_wrong_axis", _OVER, f"the sum is over the axis {over}, whatever `dim` is", over=over,
                          subtract=subtract)
                    for over in (-1, 0, 1, -2) for subtract in ("row", "nothing", "all")
                ),
                *(
                    wrong("softmax_not_normalised", _OVER, "the exponentials are not divided by their sum", divide="nothing",
                          subtract=subtract)
                    for subtract in ("row", "nothing", "all")
                ),
                wrong("exp_missing", _OVER, "the scores themselves are divided by their sum, without exp", divide="raw"),
                wrong("softmax_is_log", "the result without log", "the result is the logarithm of the softmax", divide="log"),
                wrong("softmax_wrong_norm", _OVER, "the exponentials are divided by the root of their squares",
                      divide="squares"),
                wrong("softmax_is_sigmoid", _OVER, "each score is mapped alone, by the sigmoid", divide="sigmoid"),
            ],
        )
    ],
)  # fmt: skip


Scale = Callable[[Tensor, Tensor], float]
_SCALES: dict[str, Scale] = {
    "scale_missing": lambda q, k: 1.0,
    "scale_by_d_head": lambda q, k: 1 / q.shape[-1],
    "scale_inverted": lambda q, k: math.sqrt(q.shape[-1]),
    "scale_by_n_heads": lambda q, k: 1 / math.sqrt(q.shape[1]),
}


def _scale(q: Tensor, k: Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])


def attention_of(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head key d_head"],
    v: Float[Tensor, "batch head key d_value"],
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    *,
    scale: Scale = _scale,
    dim: int = -1,
    masked: str = "fill",
    fill: float = -1e30,
    weights_are: str = "softmax",
    shown: str = "weights",
    scales: str = "scores",
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query key"]]:
    """Scaled dot-product attention; the keyword arguments make it wrong."""
    in_q = scales == "queries"
    scores = (q * scale(q, k)) @ k.transpose(-2, -1) if in_q else (q @ k.transpose(-2, -1)) * scale(q, k)
    if mask is not None:
        scores = {
            "fill": lambda: scores.masked_fill(~mask, fill),
            "inverted": lambda: scores.masked_fill(mask, fill),
            "added": lambda: scores + mask,
            "added_inverted": lambda: scores + mask * -1e9,
            "multiplied": lambda: scores * mask,
        }.get(masked, lambda: scores)()
    weights = {"softmax": lambda: scores.softmax(dim), "scores": lambda: scores, "sigmoid": scores.sigmoid}[
        weights_are
    ]()
    if mask is not None and masked == "after":
        weights = weights.masked_fill(~mask, 0.0)
    return weights @ v, scores if shown == "scores" else weights


def attend(function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call attention and name its two results."""
    return unpacked(function(*inputs.values()), "output", "weights")


class AroundAttention(nn.Module):
    """A causal model of tokens whose attention is a function of queries, keys and values."""

    def __init__(self, attention: Callable[..., Any]) -> None:
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(29, 21), attention, nn.Linear(21, 29)
        self.query, self.key, self.value = (nn.Linear(21, 21) for _ in range(3))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """Return logits."""
        x, n = self.embed(tokens), tokens.shape[1]
        q, k, v = (part(x).unflatten(-1, (3, 7)).transpose(1, 2) for part in (self.query, self.key, self.value))
        z = self.attention(q, k, v, torch.ones(n, n, dtype=torch.bool).tril())[0]
        return self.head(x + z.transpose(1, 2).flatten(2))


def _qkv(
    seed: int, batch: int = 2, head: int = 3, query: int = 5, key: int = 7, d: int = 11, value: int = 13
) -> dict[str, Tensor]:
    return {
        "q": normal(seed, batch, head, query, d),
        "k": normal(seed + 1, batch, head, key, d),
        "v": normal(seed + 2, batch, head, key, value),
    }


def _attention_cases() -> list[TaskCase]:
    causal = torch.ones(5, 5).tril().bool()
    keys = torch.arange(7) < torch.tensor([7, 4])[:, None, None, None]
    some = normal(40, 2, 3, 5, 7) > -0.3
    some[..., 0] = True
    empty = torch.arange(7) < torch.tensor([7, 0])[:, None, None, None]
    low = _qkv(90)
    low = {"q": 15 * low["q"].abs(), "k": -15 * low["k"].abs(), "v": low["v"]}
    return [
        TaskCase("no mask: 5 queries, 7 keys", _qkv(10)),
        TaskCase("a causal mask [5, 5]", _qkv(20, key=5) | {"mask": causal}),
        TaskCase("a padding mask [2, 1, 1, 7]", _qkv(30) | {"mask": keys}),
        TaskCase("another mask for each head", _qkv(50) | {"mask": some}),
        TaskCase("scores up to 100, with a mask", {n: 5 * x if n != "v" else x for n, x in _qkv(60).items()} | {"mask": keys}),
        TaskCase("scores about −500, with a mask", low | {"mask": keys}),
        TaskCase("a text without any key: finite numbers", _qkv(70) | {"mask": empty}, free=~empty.any(-1, keepdim=True)),
        TaskCase("float64", {name: x.double() for name, x in _qkv(80).items()}),
    ]  # fmt: skip


_FILL = "scores = scores.masked_fill(~mask, -math.inf), before the softmax"
_ROOT = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"
_KEYS = "weights = softmax(scores, dim=-1)"
ATTENTION = AssignmentTask(
    "attention",
    "Scaled dot-product attention",
    [
        TaskPart(
            "attention",
            attention_of,
            _attention_cases,
            {"output": "batch head query d_value", "weights": "batch head query key"},
            "Print the weights of one query: they add up to 1, and are 0 where the mask is False.",
            [
                *(wrong(name, _ROOT, is_missing=name == "scale_missing", scale=one) for name, one in _SCALES.items()),
                *(
                    wrong("scale_other", _ROOT, scale=one)
                    for one in (
                        lambda q, k: 1 / math.sqrt(k.shape[-2]),
                        lambda q, k: 1 / math.sqrt(q.shape[-2]),
                        lambda q, k: 1 / math.sqrt(q.shape[1] * q.shape[-1]),
                        lambda q, k: 1 / q.shape[-1] ** 2,
                        lambda q, k: 1 / k.shape[-2],
                    )
                ),
                wrong("softmax_over_queries", _KEYS, dim=-2),
                wrong("softmax_over_heads", _KEYS, dim=1),
                wrong("attention_over_batch", _KEYS, dim=0),
                wrong("mask_not_applied", _FILL, "the mask does not reach the scores", masked="no", is_missing=True),
                wrong("mask_inverted", _FILL, "the mask hides what it should show", masked="inverted"),
                wrong("mask_inverted", _FILL, "the mask hides what it should show", masked="inverted", fill=-INF),
                wrong("mask_inverted", _FILL, "the mask hides what it should show", masked="added_inverted"),
                wrong("mask_added_as_bool", _FILL, masked="added"),
                wrong("mask_multiplied", _FILL, masked="multiplied"),
                wrong("mask_after_softmax", _FILL, masked="after", beyond={"masked": "no"}),
                *(
                    wrong("mask_too_small", _FILL, fill=fill)
                    for fill in (-1.0, -5.0, -10.0, -20.0, -50.0, -100.0)
                ),
                *(
                    wrong("mask_too_small", _FILL, f"a positive score of {fill:g} hides nothing", fill=fill)
                    for fill in (1e9, INF)
                ),
                wrong(
                    "masked_row_nan", "weights = weights.masked_fill(~mask, 0.0), after the softmax",
                    "the softmax of a row of −inf is NaN, and it spreads to every later layer", fill=-INF,
                ),
                *(wrong("softmax_missing", _KEYS, "the scores are used as weights, without a softmax", weights_are="scores",
                        fill=fill) for fill in (-1e30, 0.0, -1e9, -INF)),
                wrong("softmax_is_sigmoid", _KEYS, "each score is mapped alone, by the sigmoid", weights_are="sigmoid"),
                wrong("weights_are_scores", "return weights @ v, weights",
                      "the second result is the scores, not the weights", shown="scores"),
            ],
            attend,
            uses=("softmax",),
            styles=[{"scales": "queries"}],
            model=AroundAttention,
            equation="softmax(q·kᵀ / √d_head)·v, with the mask before the softmax",
        )
    ],
    needs=("softmax",),
)  # fmt: skip
