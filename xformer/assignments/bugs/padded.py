"""A small BERT that reads padding, as the right model of some bugs."""

import math

import torch
from torch import nn


class FlatAttention(nn.Module):
    """Attention whose heads are part of the batch: tensors are [batch·head, pos, d_head]."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(d_model, d_model)
        self.to_k = nn.Linear(d_model, d_model)
        self.to_v = nn.Linear(d_model, d_model)
        self.to_out = nn.Linear(d_model, d_model)

    def split(self, x):
        batch, n, d_model = x.shape
        x = x.view(batch, n, self.n_heads, d_model // self.n_heads)
        return x.permute(0, 2, 1, 3).flatten(0, 1)

    def merge(self, z, batch):
        z = z.unflatten(0, (batch, self.n_heads))
        return z.permute(0, 2, 1, 3).flatten(2)

    def forward(self, x, valid):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        hidden = ~valid[:, None, :]
        hidden = hidden.repeat_interleave(self.n_heads, dim=0)
        scores = scores.masked_fill(hidden, -1e9)
        z = torch.bmm(torch.softmax(scores, dim=2), v)
        return self.to_out(self.merge(z, len(x)))


class Block(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.attention = FlatAttention(d_model, n_heads)
        self.norm1 = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, 3 * d_model), nn.ReLU(), nn.Linear(3 * d_model, d_model))
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x, valid):
        x = self.norm1(x + self.attention(x, valid))
        return self.norm2(x + self.ffn(x))


def sinusoids(n, d_model):
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angle = torch.arange(n)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Model(nn.Module):
    """A small BERT: tokens [batch, pos], valid [batch, pos] (False at padding on the right) → logits [batch, pos, vocab]."""

    def __init__(self, vocab_size=29, d_model=24, n_heads=3, n_layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens, valid=None):
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid.bool()
        x = self.embed(tokens)
        x = x + sinusoids(x.shape[1], x.shape[2])
        for block in self.blocks:
            x = block(x, valid)
        return self.head(x)
