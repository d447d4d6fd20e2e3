"""The position-wise feed-forward network (Vaswani et al. 2017, §3.3).

FFN(x) = act(x W₁ + b₁) W₂ + b₂          act = ReLU, or GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.tape import SILENT, AnyTape

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between, applied to every position alike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.weight_in = nn.Parameter(torch.empty(config.d_ff, config.d_model))
        self.weight_out = nn.Parameter(torch.empty(config.d_model, config.d_ff))
        self.bias_in = nn.Parameter(torch.empty(config.d_ff)) if config.ffn_bias else None
        self.bias_out = nn.Parameter(torch.empty(config.d_model)) if config.ffn_bias else None

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        tape: AnyTape = SILENT,
        dropout: Dropout = NO_DROPOUT,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = tape("in", x)
        pre = tape("pre", F.linear(x, self.weight_in, self.bias_in))  # [batch, pos, d_ff]
        post = tape("post", self.activation(pre))  # [batch, pos, d_ff]
        post = dropout("ffn", post)
        return tape("out", F.linear(post, self.weight_out, self.bias_out))
