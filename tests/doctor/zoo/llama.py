"""A decoder with rotary positions, grouped keys and values, RMS norms and a gated feed-forward layer."""

import torch
from torch import nn
from torch.nn.functional import silu

DIM, N_HEADS, N_KV, HEAD_DIM = 40, 4, 2, 10


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        var = x.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * x * torch.rsqrt(var + self.eps)


def rope_tables(n: int, dim: int, theta: float = 10000.0):
    inv_freq = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(n).float(), inv_freq)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, N_HEADS * HEAD_DIM, bias=False)
        self.wk = nn.Linear(DIM, N_KV * HEAD_DIM, bias=False)
        self.wv = nn.Linear(DIM, N_KV * HEAD_DIM, bias=False)
        self.wo = nn.Linear(N_HEADS * HEAD_DIM, DIM, bias=False)

    def forward(self, x, cos, sin):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, N_HEADS, HEAD_DIM).transpose(1, 2)
        xk = self.wk(x).view(bsz, seqlen, N_KV, HEAD_DIM).transpose(1, 2)
        xv = self.wv(x).view(bsz, seqlen, N_KV, HEAD_DIM).transpose(1, 2)
        xq = xq * cos + rotate_half(xq) * sin
        xk = xk * cos + rotate_half(xk) * sin
        xk = xk.repeat_interleave(N_HEADS // N_KV, dim=1)
        xv = xv.repeat_interleave(N_HEADS // N_KV, dim=1)
        scores = torch.matmul(xq, xk.transpose(2, 3)) / HEAD_DIM**0.5
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(diagonal=1)
        scores = scores + mask
        weights = scores.softmax(dim=-1)
        out = torch.matmul(weights, xv)
        out = out.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)


class FeedForward(nn.Module):
    def __init__(self, hidden: int = 96):
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, hidden, bias=False), nn.Linear(DIM, hidden, bias=False)
        self.w2 = nn.Linear(hidden, DIM, bias=False)

    def forward(self, x):
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        out = h + self.feed_forward(self.ffn_norm(h))
        return out


class Model(nn.Module):
    def __init__(self, vocab: int = 61, n_layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(n_layers))
        self.norm = RMSNorm(DIM)
        self.output = nn.Linear(DIM, vocab, bias=False)

    def forward(self, tokens):
        h = self.embed(tokens)
        cos, sin = rope_tables(tokens.shape[1], HEAD_DIM)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.output(self.norm(h))
