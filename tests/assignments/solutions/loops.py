"""A solution with loops and lists."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def softmax(scores, dim=-1):
    rows = []
    for row in scores.movedim(dim, -1).reshape(-1, scores.shape[dim]):
        powers = (row - max(row.tolist())).exp()
        rows.append(powers / sum(powers))
    return torch.stack(rows).view_as(scores.movedim(dim, -1)).movedim(-1, dim)


def attention(q, k, v, mask=None):
    shape = (*q.shape[:3], k.shape[2])
    allowed = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
    outputs, weights = [], []
    for b in range(shape[0]):
        for h in range(shape[1]):
            scores = torch.stack([k[b, h] @ query for query in q[b, h]]) / math.sqrt(q.shape[-1])
            kept = softmax(scores + torch.where(allowed[b, h], 0.0, -1e9).to(scores.dtype))
            weights.append(kept)
            outputs.append(torch.stack([sum(w * value for w, value in zip(row, v[b, h], strict=True)) for row in kept]))
    return torch.stack(outputs).unflatten(0, shape[:2]), torch.stack(weights).unflatten(0, shape[:2])


def causal_mask(n):
    return torch.tensor([[key <= query for key in range(n)] for query in range(n)])


def padding_mask(lengths, n):
    mask = torch.zeros(len(lengths), 1, 1, n, dtype=torch.bool)
    for text, length in enumerate(lengths.tolist()):
        mask[text, 0, 0, :length] = True
    return mask


def split_heads(x, n_heads):
    width = x.shape[-1] // n_heads
    return torch.stack([x[..., head * width : (head + 1) * width] for head in range(n_heads)], dim=1)


def merge_heads(x):
    return torch.cat([x[:, head] for head in range(x.shape[1])], dim=-1)


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
    table = torch.zeros(n, d_model)
    for position in range(n):
        for pair in range(d_model // 2):
            angle = position / 10000 ** (2 * pair / d_model)
            table[position, 2 * pair] = math.sin(angle)
            table[position, 2 * pair + 1] = math.cos(angle)
    return table


def rotate(x, positions, base=10000.0):
    out, half = x.clone(), x.shape[-1] // 2
    for row, position in enumerate(positions.tolist()):
        for pair in range(half):
            angle = position / base ** (2 * pair / x.shape[-1])
            a, b = x[..., row, pair], x[..., row, pair + half]
            out[..., row, pair] = a * math.cos(angle) - b * math.sin(angle)
            out[..., row, pair + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        mean = sum(x.unbind(-1))[..., None] / x.shape[-1]
        variance = sum((x - mean).square().unbind(-1))[..., None] / x.shape[-1]
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
    losses = []
    for text, ids in zip(logits, tokens.tolist(), strict=True):
        for scores, target in zip(text[:-1], ids[1:], strict=True):
            if target != ignore_index:
                losses.append(scores.logsumexp(0) - scores[target])
    return sum(losses) / len(losses)


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
    texts = tokens.tolist()
    for _ in range(n_new):
        for text, scores in zip(texts, model(torch.tensor(texts)), strict=True):
            text.append(int(scores[-1].argmax()))
    return torch.tensor(texts)


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
