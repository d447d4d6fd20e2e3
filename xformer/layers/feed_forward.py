"""The position-wise feed-forward network (Vaswani et al. 2017, §3.3), and the norm of the residual stream.

FFN(x) = act(x W₁ + b₁) W₂ + b₂                  gated: (act(x W_gate + b) ∘ (x W₁ + b₁)) W₂ + b₂

These modules hold the parameters; the nonlinearity, the gate and the norm's equation are in `xformer.components`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.embedding import Stream
from xformer.tape import SILENT, AnyTape


class FeedForwardLayer(nn.Module):
    """Linear maps with a nonlinearity in between, applied to each position independently."""

    weight_in: nn.Parameter
    weight_out: nn.Parameter
    weight_gate: nn.Parameter
    bias_in: nn.Parameter | None
    bias_out: nn.Parameter | None
    bias_gate: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.component = config.ffn_component
        self.activation = self.component.function()
        shapes = self.component.shapes(config)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for name in ("bias_gate", "bias_in", "bias_out"):
            if name not in shapes:
                self.register_parameter(name, None)

    def forward(self, x: Stream, *, tape: AnyTape = SILENT, dropout: Dropout = NO_DROPOUT) -> Stream:
        """Return the output to add to the stream. Records `in`, `pre`, `post`, `out`, with a gate also `gate` and `up`."""
        post = tape("post", self.hidden(tape("in", x), tape))  # [batch, pos, d_ff]
        post = dropout("ffn", post)
        return tape("out", F.linear(post, self.weight_out, self.bias_out))

    def hidden(self, x: Stream, tape: AnyTape) -> Float[Tensor, "batch pos d_ff"]:
        """Return the neurons: act(x W₁ + b₁), or with a gate act(x W_gate + b) ∘ (x W₁ + b₁)."""
        if not self.component.is_gated:
            return self.activation(tape("pre", F.linear(x, self.weight_in, self.bias_in)))
        pre = tape("pre", F.linear(x, self.weight_gate, self.bias_gate))  # [batch, pos, d_ff]
        gate = tape("gate", self.activation(pre))  # [batch, pos, d_ff]
        return gate * tape("up", F.linear(x, self.weight_in, self.bias_in))


class NormLayer(nn.Module):
    """Normalise each vector and scale it by γ (`weight`); `bias` is the shift β, or None if the component has none."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.component, self.eps = config.norm_component, config.norm_eps
        initial = self.component.initial()
        for name in ("weight", "bias"):
            value = nn.Parameter(torch.full((config.d_model,), initial[name])) if name in initial else None
            self.register_parameter(name, value)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.component.apply(x, self.weight, self.bias, self.eps)
