"""A decoder as a paper's appendix would have it: parameters in a dictionary, einsum, post-norm, sinusoids, keys before queries."""

import torch
from torch import einsum, nn

WIDTH, HEADS, HIDDEN = 32, 4, 64


def layer_norm(x, gain, bias):
    mu = x.mean(-1, keepdim=True)
    sigma = ((x - mu) ** 2).mean(-1, keepdim=True)
    return (x - mu) / (sigma + 1e-5).sqrt() * gain + bias


def sinusoids(length, width):
    position = torch.arange(length)[:, None]
    rate = 10000 ** (-torch.arange(0, width, 2) / width)
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


def attention(p, name, x):
    q = einsum("bid,dhe->bihe", x, p[name + "_query"])
    k = einsum("bjd,dhe->bjhe", x, p[name + "_key"])
    v = einsum("bjd,dhe->bjhe", x, p[name + "_value"])
    q = q * (WIDTH // HEADS) ** -0.5
    logits = einsum("bihe,bjhe->bhij", q, k)
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
    logits = torch.where(j > i, torch.tensor(-1e30), logits)
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    mixed = einsum("bhij,bjhe->bihe", weights, v)
    return einsum("bihe,hed->bid", mixed, p[name + "_out"])


def feed_forward(p, name, x):
    hidden = torch.relu(x @ p[name + "_in"])
    return hidden @ p[name + "_down"]


class Model(nn.Module):
    def __init__(self, vocabulary=61, depth=2):
        super().__init__()
        self.depth = depth
        head = WIDTH // HEADS
        shapes = {"table": (vocabulary, WIDTH)}
        for n in range(depth):
            shapes |= {f"{n}_{one}": (WIDTH, HEADS, head) for one in ("query", "key", "value")}
            shapes |= {f"{n}_out": (HEADS, head, WIDTH), f"{n}_in": (WIDTH, HIDDEN), f"{n}_down": (HIDDEN, WIDTH)}
        self.p = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(shape) / shape[0] ** 0.5) for name, shape in shapes.items()}
        )
        self.gain, self.bias = nn.Parameter(torch.ones(2 * depth, WIDTH)), nn.Parameter(torch.zeros(2 * depth, WIDTH))

    def forward(self, ids):
        x = self.p["table"][ids] * WIDTH**0.5
        x = x + sinusoids(ids.shape[1], WIDTH)
        for n in range(self.depth):
            x = layer_norm(x + attention(self.p, str(n), x), self.gain[2 * n], self.bias[2 * n])
            x = layer_norm(x + feed_forward(self.p, str(n), x), self.gain[2 * n + 1], self.bias[2 * n + 1])
        return x @ self.p["table"].T
