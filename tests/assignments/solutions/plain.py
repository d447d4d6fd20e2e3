"""A solution with the functions of PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def softmax(scores, dim=-1):
    e = torch.exp(scores - scores.max(dim=dim, keepdim=True).values)
    return e / e.sum(dim=dim, keepdim=True)


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = softmax(scores, dim=-1)
    return weights @ v, weights


def causal_mask(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def padding_mask(lengths, n):
    mask = torch.arange(n) < lengths[:, None]
    return mask[:, None, None, :]


def split_heads(x, n_heads):
    batch, n, d_model = x.shape
    return x.view(batch, n, n_heads, d_model // n_heads).transpose(1, 2)


def merge_heads(x):
    batch, n_heads, n, d_head = x.shape
    return x.transpose(1, 2).reshape(batch, n, n_heads * d_head)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q = split_heads(self.query(x), self.n_heads)
        k = split_heads(self.key(x), self.n_heads)
        v = split_heads(self.value(x), self.n_heads)
        z, _ = attention(q, k, v, mask)
        z = merge_heads(z)
        return self.output(z)


def sinusoidal_positions(n, d_model):
    position = torch.arange(n)[:, None]
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    table = torch.zeros(n, d_model)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half) / half)
    angle = positions[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return x * self.weight + self.bias


class Block(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.norm1 = LayerNorm(d_model)
        self.norm2 = LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)
        h = self.up(self.norm2(x))
        return x + self.down(F.gelu(h))


def next_token_loss(logits, tokens, ignore_index=None):
    logits = logits[:, :-1]
    targets = tokens[:, 1:]
    ignored = -100 if ignore_index is None else ignore_index
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignored)


class CachedAttention(MultiHeadAttention):
    def forward(self, x, cache=None):
        q = split_heads(self.query(x), self.n_heads)
        k = split_heads(self.key(x), self.n_heads)
        v = split_heads(self.value(x), self.n_heads)
        if cache is not None:
            past_k, past_v = cache
            k = torch.cat([past_k, k], dim=2)
            v = torch.cat([past_v, v], dim=2)
        n, n_key = q.shape[2], k.shape[2]
        mask = torch.ones(n, n_key, dtype=torch.bool).tril(n_key - n)
        z, _ = attention(q, k, v, mask)
        return self.output(merge_heads(z)), (k, v)


def generate(model, tokens, n_new):
    for _ in range(n_new):
        logits = model(tokens)[:, -1]
        new = logits.argmax(dim=-1)
        tokens = torch.cat([tokens, new[:, None]], dim=1)
    return tokens


class GPT(nn.Module):
    def __init__(self, vocab_size, d_model=48, n_heads=3, n_layers=2, d_ff=96):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm = LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        n = tokens.shape[1]
        x = self.embed(tokens) + sinusoidal_positions(n, self.embed.embedding_dim)
        for block in self.blocks:
            x = block(x, causal_mask(n))
        return self.head(self.norm(x))
