"""A solution with einsum and the built-in functions."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def softmax(scores, dim=-1):
    return (scores - scores.logsumexp(dim, keepdim=True)).exp()


def attention(q, k, v, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", q * q.shape[-1] ** -0.5, k)
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = softmax(scores)
    return torch.einsum("...qk,...kv->...qv", weights, v), weights


def causal_mask(n):
    at = torch.arange(n)
    return at[:, None] >= at


def padding_mask(lengths, n):
    return (torch.arange(n).expand(len(lengths), n) < lengths.unsqueeze(-1)).unflatten(0, (-1, 1, 1))


def split_heads(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).permute(0, 2, 1, 3)


def merge_heads(x):
    return x.permute(0, 2, 1, 3).flatten(2)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = (part(x).unflatten(-1, (self.n_heads, -1)) for part in (self.query, self.key, self.value))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.output(torch.einsum("bhqk,bkhd->bqhd", softmax(scores), v).flatten(2))


def sinusoidal_positions(n, d_model):
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angle = torch.einsum("p,i->pi", torch.arange(n).float(), rate)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = torch.outer(positions.to(x.dtype), base ** (-torch.arange(half, dtype=x.dtype) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


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
    targets = tokens[:, 1:]
    counts = torch.ones_like(targets) if ignore_index is None else (targets != ignore_index).long()
    picked = logits[:, :-1].log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return -(picked * counts).sum() / counts.sum()


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
    made = tokens.new_zeros(len(tokens), tokens.shape[1] + n_new)
    made[:, : tokens.shape[1]] = tokens
    for at in range(tokens.shape[1], made.shape[1]):
        made[:, at] = model(made[:, :at])[:, -1].argmax(-1)
    return made


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
