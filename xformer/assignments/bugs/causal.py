"""A GPT with learned positions, as the right model of some bugs."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        batch, n, d_model = x.shape
        d_head = d_model // self.n_heads
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(batch, n, self.n_heads, d_head).transpose(1, 2)
        k = k.view(batch, n, self.n_heads, d_head).transpose(1, 2)
        v = v.view(batch, n, self.n_heads, d_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(d_head)
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
        weights = F.softmax(scores, dim=-1)
        z = weights @ v
        z = z.transpose(1, 2).reshape(batch, n, d_model)
        return self.out(z)


class Block(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, n_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = F.gelu(self.up(self.norm2(x)))
        return x + self.down(h)


class Model(nn.Module):
    """A GPT: tokens [batch, pos] → logits [batch, pos, vocab]."""

    def __init__(self, vocab_size=29, d_model=24, n_heads=3, n_layers=2, max_len=32):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens):
        logits = self(tokens)[:, :-1]
        targets = tokens[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
