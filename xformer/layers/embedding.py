"""Embeddings of tokens and image patches, positions, and the unembedding to logits (Vaswani et al. 2017, §3.4, §3.5).

The position encodings themselves are in `xformer.positions`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.config import MAX_INK, ModelConfig
from xformer.errors import InputError
from xformer.layers.masks import SequencePacking
from xformer.tape import SILENT, AnyTape

Stream = Float[Tensor, "batch pos d_model"]


class TokenEmbedding(nn.Module):
    """x = E[token], times √d_model if `scale_embeddings` is set."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else None
        self.token = nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Stream:
        x = F.embedding(tokens, self.token)
        return x if self.scale is None else x * self.scale


class PatchEmbedding(nn.Module):
    """x₀ = [class; p¹W + b; …; pᴺW + b]: linear embeddings of image patches (Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1).

    Patches are in row-major order; pixels are scaled to [0, 1].
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.image, self.patch = config.image, config.patch
        self.weight = nn.Parameter(torch.empty(config.d_model, config.patch**2))
        self.bias = nn.Parameter(torch.empty(config.d_model))
        self.class_token = nn.Parameter(torch.empty(config.d_model))

    def forward(self, pixels: Int[Tensor, "batch pixel"]) -> Stream:
        patches = F.linear(self.patches(pixels), self.weight, self.bias)  # [batch, patch, d_model]
        first = self.class_token.expand(len(pixels), 1, -1)  # [batch, 1, d_model]
        return torch.cat((first, patches), dim=1)

    def patches(self, pixels: Int[Tensor, "batch pixel"]) -> Float[Tensor, "batch patch inside"]:
        """Return the scaled pixels of each patch, in row-major order."""
        side = self.image // self.patch
        grid = pixels.view(len(pixels), side, self.patch, side, self.patch)  # [batch, row, y, column, x]
        patches = grid.transpose(2, 3).flatten(3).flatten(1, 2)  # [batch, patch, inside]
        return patches.to(self.weight.dtype) / MAX_INK


AnyEmbedding = TokenEmbedding | PatchEmbedding


def embedding_of(config: ModelConfig) -> AnyEmbedding:
    """Return a new embedding for a model's inputs: tokens or image patches."""
    return PatchEmbedding(config) if config.image else TokenEmbedding(config)


def embedding_table(embedding: AnyEmbedding) -> Float[Tensor, "vocab d_model"]:
    """Return the table of a `TokenEmbedding`. Raises `InputError` for a patch embedding, which has none."""
    if isinstance(embedding, PatchEmbedding):
        raise InputError("An image model has no token embedding table; its patches are projected by embedding.weight.")
    return embedding.token


class Unembedding(nn.Module):
    """logits = x W + b; with a tied output, W is the embedding matrix itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_output else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.output_bias else None

    def forward(self, x: Stream, embedding: AnyEmbedding) -> Float[Tensor, "batch pos vocab"]:
        return F.linear(x, self.matrix(embedding), self.bias)

    def matrix(self, embedding: AnyEmbedding) -> Float[Tensor, "vocab d_model"]:
        """Return the output matrix: its own, or the embedding table if tied."""
        return embedding_table(embedding) if self.weight is None else self.weight


class PositionTables(nn.Module):
    """The tables of a position encoding: learned ones are parameters, fixed ones are recomputed and not saved."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.kind = config, config.position_kind
        for name, shape in self.kind.learned(config).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for name, table in self.kind.fixed(config).items():
            table = table.to(torch.get_default_device(), torch.get_default_dtype())
            self.register_buffer(name, table, persistent=False)

    def tables(self) -> dict[str, Tensor]:
        """Return all tables by name."""
        return {**dict(self.named_parameters(recurse=False)), **dict(self.named_buffers(recurse=False))}

    def forward(self, layout: SequencePacking) -> Float[Tensor, "*batch pos d_model"] | None:
        """Return the vectors to add to the embeddings; None for an encoding that adds nothing."""
        return self.kind.add(self.config, self.tables(), layout.positions, layout.mirrored)


class AddPositions(nn.Module):
    """embed + pos_embed, for additive position encodings; the others act inside attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.kind = config, config.position_kind
        needs_tables = bool(self.kind.learned(config) or self.kind.fixed(config))
        self.table = PositionTables(config) if needs_tables else None

    def forward(self, embed: Stream, layout: SequencePacking, tape: AnyTape = SILENT) -> Stream:
        embed = tape("embed", embed)
        vectors = None if self.table is None else self.table(layout)
        return embed if vectors is None else embed + tape("pos_embed", vectors.to(embed.dtype))

    def angles(
        self, positions: Int[Tensor, "*batch pos"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch pos half"] | None:
        """Return the rotation angles of queries and keys, in at least float32: half precision is wrong at far positions."""
        angles = self.kind.angles(self.config, positions)
        return None if angles is None else angles.to(torch.promote_types(dtype, torch.float32))

    def bias(
        self, queries: Int[Tensor, "*batch query"], keys: Int[Tensor, "*batch key"], dtype: torch.dtype, *, causal: bool
    ) -> Float[Tensor, "#batch head query key"] | None:
        """Return the bias of the self-attention scores, the same in all layers of the stack."""
        tables = {} if self.table is None else self.table.tables()
        bias = self.kind.bias(self.config, tables, queries, keys, causal=causal)
        return None if bias is None else bias.to(dtype)
