"""A small Llama with a cache, as the right model of some bugs."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, positions):
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10000.0 ** (torch.arange(half) / half)
    angle = torch.cat([angle, angle], dim=-1)
    swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * angle.cos() + swapped * angle.sin()


class RMSNorm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight


class GroupedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_groups):
        super().__init__()
        self.n_heads, self.n_groups, self.d_head = n_heads, n_groups, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.wk = nn.Linear(d_model, n_groups * self.d_head, bias=False)
        self.wv = nn.Linear(d_model, n_groups * self.d_head, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, past=None):
        batch, n, d_model = x.shape
        q = self.wq(x).view(batch, n, self.n_heads, self.d_head).transpose(1, 2)
        k = self.wk(x).view(batch, n, self.n_groups, self.d_head).transpose(1, 2)
        v = self.wv(x).view(batch, n, self.n_groups, self.d_head).transpose(1, 2)
        n_past = 0 if past is None else past[0].shape[2]
        positions = torch.arange(n_past, n_past + n)
        q = rotate(q, positions)
        k = rotate(k, positions)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        group = self.n_heads // self.n_groups
        keys = k.repeat_interleave(group, dim=1)
        values = v.repeat_interleave(group, dim=1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, keys) * self.d_head**-0.5
        allowed = torch.ones(n, n_past + n, dtype=torch.bool).tril(n_past)
        scores = torch.where(allowed, scores, -1e30)
        z = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(dim=-1), values)
        return self.wo(z.reshape(batch, n, d_model)), (k, v)


class Block(nn.Module):
    def __init__(self, d_model, n_heads, n_groups):
        super().__init__()
        self.attention_norm = RMSNorm(d_model)
        self.attention = GroupedAttention(d_model, n_heads, n_groups)
        self.ffn_norm = RMSNorm(d_model)
        self.gate = nn.Linear(d_model, 3 * d_model, bias=False)
        self.up = nn.Linear(d_model, 3 * d_model, bias=False)
        self.down = nn.Linear(3 * d_model, d_model, bias=False)

    def forward(self, x, past=None):
        made, kept = self.attention(self.attention_norm(x), past)
        x = x + made
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), kept


class Model(nn.Module):
    """A small Llama: tokens [batch, pos] and the cache of earlier tokens → logits [batch, pos, vocab] and the new cache."""

    def __init__(self, vocab_size=29, d_model=32, n_heads=4, n_groups=2, n_layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(Block(d_model, n_heads, n_groups) for _ in range(n_layers))
        self.norm = RMSNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens, past=None):
        x, kept = self.embed(tokens), []
        for at, layer in enumerate(self.layers):
            x, pair = layer(x, None if past is None else past[at])
            kept.append(pair)
        return self.head(self.norm(x)), kept
