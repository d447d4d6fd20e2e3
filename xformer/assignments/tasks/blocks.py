"""Layer norm, and the block of a transformer with the norms before its sub-layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, module_with, normal, wrong
from xformer.assignments.tasks.heads import AroundModule, MultiHeadAttentionOf, apply_module, with_weights


class LayerNormOf(nn.Module):
    """Layer norm; the keyword arguments make it wrong."""

    def __init__(
        self,
        d_model: int,
        eps: float = 1e-5,
        *,
        over: int | tuple[int, ...] = -1,
        unbiased: bool = False,
        eps_in: str = "root",
        is_centred: bool = True,
        affine: str = "both",
        divide: str = "root",
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps
        self.over, self.unbiased, self.eps_in = over, unbiased, eps_in
        self.is_centred, self.affine, self.divide = is_centred, affine, divide

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalise the features of each position."""
        mean = x.mean(dim=self.over, keepdim=True)
        variance = x.var(dim=self.over, keepdim=True, unbiased=self.unbiased)
        if self.divide == "rms":
            variance = x.square().mean(dim=self.over, keepdim=True)
        inside = variance + (self.eps if self.eps_in == "root" else 0.0)
        size = inside if self.divide == "variance" else inside.sqrt()
        x = (x - mean if self.is_centred else x) / (size + (self.eps if self.eps_in == "outside" else 0.0))
        scaled = x if self.affine in ("none", "shift") else x * self.weight
        return scaled + self.bias if self.affine in ("both", "shift") else scaled


class BlockOf(nn.Module):
    """A block with its norms before the sub-layers; the keyword arguments make it wrong.

    Args:
        d_model: The number of features.
        n_heads: The number of heads.
        d_ff: The width of the feed-forward network.
        attention_residual: What the output of the attention is added to: "x", "norm", or "no" for nothing.
        ffn_residual: What the output of the feed-forward network is added to: "x", "norm", "start" or "no".
        norms: The norms before the sub-layers, "none" for no norm.
        place: Whether the norms are "before" or "after" the sub-layers, or "sum" after the residual.
        activation: The nonlinearity between the projections.
        passes_mask: Whether the attention gets the mask.
        order: Which sub-layer comes first; "parallel" for both reading the same input.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        attention_residual: str = "x",
        ffn_residual: str = "x",
        norms: tuple[str, str] = ("norm1", "norm2"),
        place: str = "before",
        activation: str = "gelu",
        passes_mask: bool = True,
        order: str = "attention",
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttentionOf(d_model, n_heads)
        self.norm1, self.norm2 = LayerNormOf(d_model), LayerNormOf(d_model)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.residuals, self.norms, self.place = (attention_residual, ffn_residual), norms, place
        self.passes_mask, self.order = passes_mask, order
        self.activation = {
            "gelu": F.gelu, "relu": F.relu, "none": lambda x: x, "tanh": torch.tanh, "silu": F.silu,
        }[activation]  # fmt: skip

    def _sublayer(self, x: Tensor, start: Tensor, which: int, mask: Tensor | None) -> Tensor:
        norm = (lambda y: y) if self.norms[which] == "none" else getattr(self, self.norms[which])
        read = norm(x) if self.place == "before" else x
        made = (
            self.attention(read, mask if self.passes_mask else None)
            if which == 0
            else self.down(self.activation(self.up(read)))
        )
        if self.place == "after":
            made = norm(made)
        added = {"x": x, "norm": read, "no": torch.zeros(()), "start": start}[self.residuals[which]] + made
        return norm(added) if self.place == "sum" else added

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "#batch #head #query #key"] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Add the attention, then the feed-forward network."""
        if self.order == "parallel":
            return self._sublayer(x, x, 0, mask) + self._sublayer(x, x, 1, mask) - x
        first = 0 if self.order == "attention" else 1
        return self._sublayer(self._sublayer(x, x, first, mask), x, 1 - first, mask)


def _norm_cases() -> list[TaskCase]:
    constant = normal(4, 2, 5, 7)
    constant[0, 2] = 3.0
    return [
        TaskCase("x [2, 5, 7]", with_weights(LayerNormOf, 1, 7, x=normal(1, 2, 5, 7) + 2)),
        TaskCase("x [2, 5, 13], small numbers", with_weights(LayerNormOf, 2, 13, x=normal(2, 2, 5, 13, scale=3e-3))),
        TaskCase("x [11, 7]", with_weights(LayerNormOf, 3, 7, x=normal(3, 11, 7, scale=3.0))),
        TaskCase("a constant row", with_weights(LayerNormOf, 4, 7, x=constant)),
        TaskCase("the gradients", with_weights(LayerNormOf, 5, 7, x=normal(5, 2, 5, 7)), with_gradient=True),
    ]


def _block_cases() -> list[TaskCase]:
    causal, sizes = torch.ones(5, 5).tril().bool(), (15, 3, 26)
    return [
        TaskCase("no mask", with_weights(BlockOf, 10, *sizes, x=normal(1, 2, 5, 15))),
        TaskCase("a causal mask", with_weights(BlockOf, 30, *sizes, x=normal(2, 2, 5, 15), mask=causal)),
        TaskCase(
            "the gradients", with_weights(BlockOf, 50, *sizes, x=normal(3, 2, 5, 15), mask=causal), with_gradient=True
        ),
    ]


_OVER = "mean and variance over the last axis: dim=-1, keepdim=True"
_ROOT = "(x - mean) / torch.sqrt(variance + self.eps)"
_FIRST = "x = x + self.attention(self.norm1(x), mask)"
_SECOND = "x = x + self.down(F.gelu(self.up(self.norm2(x))))"
LAYER_NORM_AND_BLOCK = AssignmentTask(
    "layer_norm_and_block",
    "Layer norm and block",
    [
        TaskPart(
            "LayerNorm",
            LayerNormOf,
            _norm_cases,
            {"output": "batch pos d_model", "gradient of x": "batch pos d_model"},
            "With weight 1 and bias 0, each row of the result has mean 0 and mean square 1.",
            [
                wrong("variance_unbiased", "x.var(dim=-1, keepdim=True, unbiased=False)",
                      "the variance is divided by d_model − 1, not by d_model", unbiased=True),
                wrong("eps_outside_root", _ROOT, "eps is added to the standard deviation, not to the variance",
                      eps_in="outside"),
                wrong("eps_outside_root", _ROOT, "eps is added to the standard deviation, whose variance is divided by "
                      "d_model − 1", eps_in="outside", unbiased=True),
                wrong("eps_missing", _ROOT, "eps is not added, so that a constant row is 0 / 0", eps_in="nowhere"),
                wrong("norm_over_positions", _OVER, over=(-2, -1)),
                wrong("norm_over_positions", _OVER, over=-2),
                wrong("norm_over_batch", _OVER, over=0),
                wrong("norm_kind", _ROOT, "the mean is not subtracted, as in an RMS norm", is_centred=False, divide="rms"),
                wrong("norm_kind", _ROOT, "the mean is not subtracted", is_centred=False),
                wrong("divides_by_variance", _ROOT, "the numbers are divided by the variance, not by its root",
                      divide="variance"),
                *(wrong("affine_missing", "x * self.weight + self.bias", what, affine=affine, is_missing=True)
                  for affine, what in (("none", "neither weight nor bias is applied"), ("scale", "the bias is not added"),
                                       ("shift", "the weight is not applied"))),
            ],
            apply_module,
            module_with,
        ),
        TaskPart(
            "Block",
            BlockOf,
            _block_cases,
            {"output": "batch pos d_model", "gradient of x": "batch pos d_model"},
            "If both `output` and `down` had weights of 0, the block would return x itself.",
            [
                wrong("residual_missing", _FIRST, attention_residual="no", is_missing=True),
                wrong("residual_missing", _SECOND, ffn_residual="no", is_missing=True),
                wrong("residual_missing", _FIRST, ffn_residual="no", attention_residual="no", is_missing=True),
                wrong("residual_from_norm", _FIRST, attention_residual="norm"),
                wrong("residual_from_norm", _SECOND, ffn_residual="norm"),
                wrong("residual_from_norm", _FIRST, attention_residual="norm", ffn_residual="norm"),
                wrong("residual_other", _SECOND, ffn_residual="start"),
                wrong("norm_place", _FIRST, "the norms are after the sub-layers, not before", place="after"),
                wrong("norm_place", _FIRST, "the norms are after the sums, not before the sub-layers", place="sum"),
                wrong("norm_missing", _FIRST, "the attention reads x without a norm", norms=("none", "norm2"), is_missing=True),
                wrong("norm_missing", _SECOND, "the feed-forward network reads x without a norm", norms=("norm1", "none"),
                      is_missing=True),
                wrong("norm_missing", _FIRST, "no sub-layer has a norm", norms=("none", "none"), is_missing=True),
                wrong("norm_shared", _SECOND, "both sub-layers use one norm", norms=("norm1", "norm1")),
                wrong("norm_shared", _FIRST, "both sub-layers use one norm", norms=("norm2", "norm2")),
                wrong("norm_shared", _FIRST, "the norms are exchanged", norms=("norm2", "norm1")),
                wrong("activation_missing", _SECOND, activation="none", is_missing=True),
                *(wrong("activation_other", _SECOND, f"the activation is {name}, not gelu", activation=name)
                  for name in ("relu", "tanh", "silu")),
                wrong("mask_not_applied", _FIRST, "the mask is not passed to the attention", passes_mask=False,
                      is_missing=True),
                wrong("sublayers_swapped", _FIRST, "the feed-forward network comes before the attention", order="ffn"),
                wrong("sublayers_parallel", _SECOND, "both sub-layers read the same input", order="parallel"),
            ],
            apply_module,
            module_with,
            ("softmax", "attention", "split_heads", "merge_heads", "MultiHeadAttention", "LayerNorm"),
            [{"scales": "queries"}],
            lambda module: AroundModule(module, 15, adds=False),
            f"{_FIRST}; {_SECOND}",
        ),
    ],
    needs=("multi_head_attention",),
)  # fmt: skip
