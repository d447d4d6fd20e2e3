"""The peers of our model: the same encoder built from PyTorch modules, and one written without regard to speed.

TorchEncoder    nn.TransformerEncoder. Its heads share d_model: with d_model 16, four heads have width 4, which is less work.
TrueHeads       the same architecture and number of parameters as ours, from nn.Linear, nn.LayerNorm and
                F.scaled_dot_product_attention; with our weights (`copy_weights`) it computes the same function.
PlainEncoder    heads by einsum, normalisation as an equation, no mask: a typical first implementation.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.model import Transformer
from xformer.positions.sinusoidal import sinusoidal

Tokens = Int[Tensor, "batch pos"]
Valid = Bool[Tensor, "batch pos"]
Logits = Float[Tensor, "batch pos vocab"]


class TorchEncoder(nn.Module):
    """Embedding, sinusoidal positions, nn.TransformerEncoder, linear output."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(config.d_model, config.n_heads, config.d_ff, dropout=0.0, batch_first=True)
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
        self.output = nn.Linear(config.d_model, config.vocab_size)
        self.register_buffer("positions", sinusoidal(config.max_len, config.d_model))

    def forward(self, tokens: Tokens, valid: Valid) -> Logits:
        x = self.token(tokens) + self.positions[: tokens.shape[1]]
        return self.output(self.encoder(x, src_key_padding_mask=~valid))


class TrueHeadsLayer(nn.Module):
    """One post-norm layer; queries, keys and values of all heads from one nn.Linear."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        joined = config.n_heads * config.d_head
        self.qkv = nn.Linear(config.d_model, 3 * joined, bias=False)
        self.out = nn.Linear(joined, config.d_model, bias=False)
        self.norm1 = nn.LayerNorm(config.d_model)
        self.ffn = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff), nn.ReLU(), nn.Linear(config.d_ff, config.d_model)
        )
        self.norm2 = nn.LayerNorm(config.d_model)

    def forward(self, x: Float[Tensor, "batch pos d_model"], mask: Tensor) -> Float[Tensor, "batch pos d_model"]:
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [batch, head, pos, d_head]
        x = self.norm1(x + self.out(z.transpose(1, 2).flatten(-2)))
        return self.norm2(x + self.ffn(x))


class TrueHeads(nn.Module):
    """Our architecture built from PyTorch modules."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(TrueHeadsLayer(config) for _ in range(config.n_layers))
        self.output = nn.Linear(config.d_model, config.vocab_size)
        self.register_buffer("positions", sinusoidal(config.max_len, config.d_model))

    def forward(self, tokens: Tokens, index: Tokens, allowed: Bool[Tensor, "batch #query key"]) -> Logits:
        """Return logits. `index` is each token's position in its sequence; `allowed` is true where a query may see a key."""
        x = self.token(tokens) + self.positions[index]
        mask = torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))[:, None]  # [batch, 1, query, key]
        for layer in self.layers:
            x = layer(x, mask)
        return self.output(x)

    @torch.no_grad()
    def copy_weights(self, model: Transformer) -> None:
        """Copy the weights of one of our post-norm encoders, so that both compute the same function."""
        assert model.encoder is not None
        pairs = [(self.token.weight, model.embedding.token), (self.output.weight, model.unembedding.weight)]
        pairs += [(self.output.bias, model.unembedding.bias)]
        for mine, ours in zip(self.layers, model.encoder.blocks, strict=True):
            pairs += [(mine.qkv.weight, ours.attn.weight_in), (mine.out.weight, ours.attn.weight_out)]
            pairs += list(zip(mine.norm1.parameters(), ours.attn_residual.norm.parameters(), strict=True))
            pairs += [(mine.ffn[0].weight, ours.ffn.weight_in), (mine.ffn[0].bias, ours.ffn.bias_in)]
            pairs += [(mine.ffn[2].weight, ours.ffn.weight_out), (mine.ffn[2].bias, ours.ffn.bias_out)]
            pairs += list(zip(mine.norm2.parameters(), ours.ffn_residual.norm.parameters(), strict=True))
        for mine, ours in pairs:
            mine.copy_(ours)


class PlainAttention(nn.Module):
    """One [head, d_model, width] matrix each for q, k, v and [head, width, d_model] for the output, joined by einsum."""

    def __init__(self, d_model: int, n_heads: int, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.empty(n_heads, d_model, width)) for _ in range(3))
        self.out = nn.Parameter(torch.empty(n_heads * width, d_model))
        for matrix in (self.q, self.k, self.v, self.out):
            nn.init.xavier_uniform_(matrix)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        q, k, v = (torch.einsum("bpm,hmw->bhpw", x, matrix) for matrix in (self.q, self.k, self.v))
        pattern = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)  # [batch, head, query, key]
        out = self.out.view(self.v.shape[0], -1, x.shape[-1])  # [head, width, d_model]
        return torch.einsum("bhpw,hwm->bpm", pattern @ v, out)


class PlainNorm(nn.Module):
    """Layer normalisation, operation by operation."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        variance = x.var(dim=-1, unbiased=False, keepdim=True)
        return self.scale * (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(variance + 1e-5) + self.shift


class PlainEncoder(nn.Module):
    """Post-norm layers of the modules above. Initial weights are drawn in the order in which the modules are used."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.d_model
        self.token = nn.Embedding(config.vocab_size, d)
        self.layers = nn.ModuleList()
        for _ in range(config.n_layers):
            attention = PlainAttention(d, config.n_heads, config.d_head)
            ffn = nn.Sequential(nn.Linear(d, config.d_ff), nn.Dropout(0.0), nn.ReLU(), nn.Linear(config.d_ff, d))
            self.layers.append(nn.ModuleList([attention, PlainNorm(d), ffn, PlainNorm(d)]))
        self.output = nn.Linear(d, config.vocab_size)
        self.register_buffer("positions", sinusoidal(config.max_len, d))

    def forward(self, tokens: Tokens) -> Logits:
        x = self.token(tokens) + self.positions[: tokens.shape[1]]
        for attention, norm1, ffn, norm2 in self.layers:
            x = norm1(x + attention(x))
            x = norm2(x + ffn(x))
        return self.output(x)
