"""From token ids, or an image's patches, to vectors; and from vectors back to one score a token (Vaswani et al. 2017, §3.4)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import MAX_INK, ModelConfig
from xformer.errors import InputError


class TokenEmbedding(nn.Module):
    """x = E[token], times √d_model where the configuration says so."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else None
        self.token = nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        x = F.embedding(tokens, self.token)
        return x if self.scale is None else x * self.scale


class PatchEmbedding(nn.Module):
    """x₀ = [class; p¹W + b; …; pᴺW + b]: an image cut into patches, each a linear map of its pixels (Dosovitskiy et al. 2021,
    arXiv:2010.11929, eq. 1). Patches run row by row; a pixel counts as its share of full ink, from 0 to 1.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.image, self.patch = config.image, config.patch
        self.weight = nn.Parameter(torch.empty(config.d_model, config.patch**2))
        self.bias = nn.Parameter(torch.empty(config.d_model))
        self.class_token = nn.Parameter(torch.empty(config.d_model))

    def forward(self, pixels: Int[Tensor, "batch pixel"]) -> Float[Tensor, "batch pos d_model"]:
        patches = F.linear(self.patches(pixels), self.weight, self.bias)  # [batch, patch, d_model]
        first = self.class_token.expand(len(pixels), 1, -1)  # [batch, 1, d_model]
        return torch.cat((first, patches), dim=1)

    def patches(self, pixels: Int[Tensor, "batch pixel"]) -> Float[Tensor, "batch patch inside"]:
        """The ink of each patch's own pixels, row by row inside it too."""
        side = self.image // self.patch
        grid = pixels.view(len(pixels), side, self.patch, side, self.patch)  # [batch, row, y, column, x]
        patches = grid.transpose(2, 3).flatten(3).flatten(1, 2)  # [batch, patch, inside]
        return patches.to(self.weight.dtype) / MAX_INK


AnyEmbedding = TokenEmbedding | PatchEmbedding


def embedding_of(config: ModelConfig) -> AnyEmbedding:
    """What turns a model's input into vectors."""
    return PatchEmbedding(config) if config.image else TokenEmbedding(config)


def embedding_table(embedding: AnyEmbedding) -> Float[Tensor, "vocab d_model"]:
    """The table of a `TokenEmbedding`. Raises `InputError` for an embedding that has none."""
    if isinstance(embedding, PatchEmbedding):
        raise InputError("A model of images has no table of tokens; its patches are mapped by embedding.weight.")
    return embedding.token


class Unembedding(nn.Module):
    """logits = x W + b; with a tied output, W is the embedding matrix itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_output else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.output_bias else None

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], embedding: AnyEmbedding
    ) -> Float[Tensor, "batch pos vocab"]:
        return F.linear(x, self.matrix(embedding), self.bias)

    def matrix(self, embedding: AnyEmbedding) -> Float[Tensor, "vocab d_model"]:
        """What the logits are read with: its own matrix, or the embedding's table."""
        return embedding_table(embedding) if self.weight is None else self.weight
