"""From token ids to vectors, and from vectors back to one score for every token (Vaswani et al. 2017, §3.4)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.layers.layout import Layout
from xformer.layers.positions import ADDED_POSITIONS
from xformer.tape import SILENT, AnyTape


class TokenEmbedding(nn.Module):
    """x = E[token], times √d_model where the configuration says so."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else None
        self.token = nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        x = F.embedding(tokens, self.token)
        return x if self.scale is None else x * self.scale


class AddPositions(nn.Module):
    """embed + pos_embed, for the kinds of positions that are added; the others act inside the attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kind = ADDED_POSITIONS.get(config.positions)
        self.table = None if kind is None else kind(config)

    def forward(
        self, embed: Float[Tensor, "batch pos d_model"], layout: Layout, tape: AnyTape = SILENT
    ) -> Float[Tensor, "batch pos d_model"]:
        embed = tape("embed", embed)
        return embed if self.table is None else embed + tape("pos_embed", self.table(layout).to(embed.dtype))


class Unembedding(nn.Module):
    """logits = x W + b; with a tied output, W is the embedding matrix itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_output else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.output_bias else None

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], embedding: TokenEmbedding
    ) -> Float[Tensor, "batch pos vocab"]:
        return F.linear(x, embedding.token if self.weight is None else self.weight, self.bias)
