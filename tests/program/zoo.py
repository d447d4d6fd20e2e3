"""Hand-written attentions in many styles, each with the weights that it computed itself.

A module keeps its weights in `self.kept`, in its own layout; `own(kept)` turns them into [batch, head, query, key].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D, H, DH = 12, 3, 4
"""The width, the number of heads, and the width of a head; the batch is 1 or 3 and the length 3 or 5 in tests."""


def ids(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 17, (batch, n), generator=torch.Generator().manual_seed(n)),)


def vectors(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n)),)


def positions_first(batch: int, n: int) -> tuple[Tensor, ...]:
    return (vectors(batch, n)[0].transpose(0, 1),)


def unbatched(batch: int, n: int) -> tuple[Tensor, ...]:
    return (vectors(1, n)[0][0],)


def two_streams(batch: int, n: int) -> tuple[Tensor, ...]:
    return vectors(batch, n)[0], vectors(batch, n + 2)[0]


@dataclass(frozen=True)
class Animal:
    """One style."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Any, ...]] = vectors
    own: Callable[[list[Tensor]], list[Tensor]] = field(default=list)
    """From what the module kept to one [batch, head, query, key] for each layer."""
    refused: str = ""
    """A part of the reason, for a style that is not read."""


class Base(nn.Module):
    """Separate projections, and a list for the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.kept: list[Tensor] = []

    def keep(self, weights: Tensor) -> Tensor:
        self.kept.append(weights.detach().clone())
        return weights


def heads_second(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], H, DH).transpose(1, 2)  # [batch, head, pos, d_head]


def future(n: int) -> Tensor:
    return torch.triu(torch.ones(n, n, dtype=torch.bool), 1)


class Usual(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(DH)
        scores = scores.masked_fill(future(x.shape[1]), float("-inf"))
        z = self.keep(F.softmax(scores, dim=-1)) @ v
        return self.o(z.transpose(1, 2).reshape(x.shape))


class Gpt(Base):
    """minGPT: fused projection, a buffer of the mask, ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(17, D), nn.Embedding(16, D)
        self.qkv, self.norm = nn.Linear(D, 3 * D), nn.LayerNorm(D)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))
        self.drop = nn.Dropout(0.1)

    def forward(self, idx: Tensor) -> Tensor:
        b, t = idx.size()
        x = self.drop(self.embed(idx) + self.place(torch.arange(0, t).unsqueeze(0)))
        q, k, v = self.qkv(self.norm(x)).split(D, dim=2)
        q = q.view(b, t, H, D // H).transpose(1, 2)
        k = k.view(b, t, H, D // H).transpose(1, 2)
        v = v.view(b, t, H, D // H).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        att = self.drop(self.keep(F.softmax(att, dim=-1)))
        y = (att @ v).transpose(1, 2).contiguous().view(b, t, D)
        return F.linear(x + self.o(y), self.embed.weight)


class HeadsLast(Base):
    """Weights as [batch, query, head, key]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, DH)) for f in (self.q, self.k, self.v))
        w = self.keep(torch.softmax(torch.einsum("bqhd,bkhd->bqhk", q, k) * DH**-0.5, dim=-1))
        return self.o(torch.einsum("bqhk,bkhd->bqhd", w, v).flatten(2))


class HeadsFirst(Base):
    """Weights as [head, batch, query, key], as in the annotated positions of some courses."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack(f(x).chunk(H, dim=-1)) for f in (self.q, self.k, self.v))  # [head, batch, pos, d]
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o(torch.cat(list(w @ v), dim=-1))


class Flat(Base):
    """Weights as [batch·head, query, key]."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (heads_second(f(x)).reshape(b * H, t, DH) for f in (self.q, self.k, self.v))
        w = self.keep(torch.bmm(q, k.transpose(1, 2)).div(2).softmax(dim=2))
        return self.o(torch.bmm(w, v).view(b, H, t, DH).transpose(1, 2).reshape(b, t, D))


class FlatHeadsFirst(Base):
    """Weights as [head·batch, query, key], as in the first TensorFlow implementations."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.cat(torch.split(f(x), DH, dim=2), dim=0) for f in (self.q, self.k, self.v))
        w = self.keep(F.softmax(q.bmm(k.transpose(2, 1)) / DH**0.5, dim=-1))
        return self.o(torch.cat(torch.split(w.bmm(v), x.shape[0], dim=0), dim=2))


class FlatHeadsOuter(Base):
    """Weights as [head·batch, query, key], by a permutation."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, H, DH).permute(2, 0, 1, 3).reshape(-1, t, DH) for f in (self.q, self.k, self.v))
        w = self.keep(F.softmax(torch.matmul(q / 2, k.transpose(1, 2)), -1))
        z = (w @ v).view(H, b, t, DH).permute(1, 2, 0, 3).contiguous()
        return self.o(z.view(b, t, D))


class KeysFirst(Base):
    """Weights as [batch, head, key, query], normalised over axis −2."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(torch.softmax(k @ q.transpose(-2, -1) / 2, dim=-2))
        return self.o((w.transpose(-2, -1) @ v).transpose(1, 2).flatten(2))


class KeysFirstEinsum(Base):
    """Weights as [key, query, batch, head]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], H, DH) for f in (self.q, self.k, self.v))
        w = self.keep(torch.einsum("bihd,bjhd->jibh", q, k).softmax(dim=0))
        return self.o(torch.einsum("jibh,bjhd->bihd", w, v).reshape(x.shape))


class PositionsFirst(Base):
    """x is [pos, batch, d_model], as in fairseq; weights are [batch·head, query, key]."""

    def forward(self, x: Tensor) -> Tensor:
        t, b, _ = x.shape
        q, k, v = (f(x).contiguous().view(t, b * H, DH).transpose(0, 1) for f in (self.q, self.k, self.v))
        w = self.keep(F.softmax(torch.bmm(q * DH**-0.5, k.transpose(1, 2)), dim=-1))
        return self.o(torch.bmm(w, v).transpose(0, 1).contiguous().view(t, b, D))


class Unbatched(Base):
    """x is [pos, d_model]; weights are [head, query, key]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(-1, H, DH).transpose(0, 1) for f in (self.q, self.k, self.v))
        w = self.keep(F.softmax(q @ k.transpose(1, 2) / 2, dim=-1))
        return self.o((w @ v).transpose(0, 1).reshape(-1, D))


class OneHead(nn.Module):
    """Karpathy's lecture: one module per head."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, DH, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)))
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        self.kept.append(wei.detach().clone())
        return wei @ self.value(x)


class OneModulePerHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(OneHead() for _ in range(H)) for _ in range(2))
        self.proj = nn.ModuleList(nn.Linear(H * DH, D) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for heads, proj in zip(self.layers, self.proj, strict=True):
            x = x + proj(torch.cat([head(x) for head in heads], dim=-1))
        return x

    @property
    def kept(self) -> list[Tensor]:
        return [head.kept[-1] for heads in self.layers for head in heads]


class SummedHeads(nn.Module):
    """One module per head, each with its own output projection; their outputs are added."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(OneHead() for _ in range(H))
        self.outs = nn.ModuleList(nn.Linear(DH, D) for _ in range(H))

    def forward(self, x: Tensor) -> Tensor:
        return x + sum(out(head(x)) for head, out in zip(self.heads, self.outs, strict=True))

    @property
    def kept(self) -> list[Tensor]:
        return [head.kept[-1] for head in self.heads]


class LoopOverHeads(Base):
    """One projection, a loop over slices."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        found = []
        for head in range(H):
            at = slice(head * DH, (head + 1) * DH)
            w = self.keep(F.softmax(q[..., at] @ k[..., at].transpose(1, 2) / 2, dim=-1))
            found.append(w @ v[..., at])
        return self.o(torch.cat(found, dim=-1))


class EinsumWeights(nn.Module):
    """Weights of projections as [head, d_model, d_head], like TransformerLens."""

    def __init__(self) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(H, D, DH) / 3) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(H, DH, D) / 3)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bpm,hmd->bphd", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / DH**0.5
        scores = torch.where(future(x.shape[1]), torch.tensor(-1e5), scores)
        w = scores.softmax(-1)
        self.kept.append(w.detach())
        z = torch.einsum("bkhd,bhqk->bqhd", v, w)
        return torch.einsum("bqhd,hdm->bqm", z, self.W_O)


class Parameters(nn.Module):
    """Plain matrices and `@`."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(D, D) / 3) for _ in range(4))
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = ((x @ w).reshape(b, t, H, DH).permute(0, 2, 1, 3) for w in (self.wq, self.wk, self.wv))
        w = torch.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)) / 2 + future(t) * -1e9, dim=3)
        self.kept.append(w.detach())
        return torch.matmul(w, v).permute(0, 2, 1, 3).reshape(b, t, D) @ self.wo


class Baddbmm(Base):
    """BLOOM's way: the mask and the product in one call."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (heads_second(f(x)).reshape(b * H, t, DH) for f in (self.q, self.k, self.v))
        bias = torch.zeros(b * H, t, t).masked_fill(future(t), -1e9)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.5)
        w = self.keep(scores.view(b, H, t, t).softmax(-1, dtype=torch.float32))
        return self.o(torch.bmm(w.view(b * H, t, t), v).view(b, H, t, DH).transpose(1, 2).reshape(b, t, D))


class Sdpa(Base):
    """The kernel with [batch, head, pos, d_head]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        self.keep((q @ k.mT / 2).masked_fill(future(x.shape[1]), -math.inf).softmax(-1).detach())
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(z.transpose(1, 2).flatten(2))


class SdpaFlat(Base):
    """The kernel with [batch·head, pos, d_head]."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (heads_second(f(x)).flatten(0, 1) for f in (self.q, self.k, self.v))
        z = F.scaled_dot_product_attention(q, k, v)
        return self.o(z.view(b, H, t, DH).transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        return (heads_second(self.q(x)) @ heads_second(self.k(x)).mT / 2).softmax(-1)


class SdpaOneHead(Base):
    """The kernel with [batch, pos, d_model]: one head."""

    def forward(self, x: Tensor) -> Tensor:
        return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))

    def weights(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT / math.sqrt(D)).softmax(-1)[:, None]


class SdpaGrouped(Base):
    """The kernel with grouped heads."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(D, DH), nn.Linear(D, DH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), self.k(x)[:, None], self.v(x)[:, None]
        z = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(z.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        return (heads_second(self.q(x)) @ self.k(x)[:, None].mT / 2).softmax(-1)


class Grouped(Base):
    """Keys and values repeated for each group of heads, by `repeat_interleave`."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(D, 24), nn.Linear(24, D)
        self.k, self.v = nn.Linear(D, 2 * DH), nn.Linear(D, 2 * DH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 6, DH).transpose(1, 2)
        k, v = (f(x).view(b, t, 2, DH).transpose(1, 2).repeat_interleave(3, dim=1) for f in (self.k, self.v))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class GroupedExpanded(Grouped):
    """Keys and values expanded, as in Llama."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 6, DH).transpose(1, 2)
        k, v = (f(x).view(b, t, 2, DH).transpose(1, 2) for f in (self.k, self.v))
        k, v = (y[:, :, None].expand(b, 2, 3, t, DH).reshape(b, 6, t, DH) for y in (k, v))
        w = self.keep(torch.matmul(q, k.transpose(2, 3)).mul(0.5).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class GroupedAxes(Grouped):
    """Five axes: weights are [batch, group, head of the group, query, key]."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 2, 3, DH)
        k, v = (f(x).view(b, t, 2, DH) for f in (self.k, self.v))
        w = self.keep(torch.einsum("bqghd,bkgd->bghqk", q, k).softmax(-1))
        return self.o(torch.einsum("bghqk,bkgd->bqghd", w, v).flatten(2))


class SubmoduleSoftmax(Base):
    """The softmax is a submodule, and dropout follows."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], H, DH).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        w = self.dropout(self.keep(self.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 2)))
        return self.o(torch.einsum("bhqk,bhkd->bhqd", w, v).permute(0, 2, 1, 3).flatten(2))


class ByHand(Base):
    """exp / sum, with the largest score subtracted."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = q @ k.mT / 2
        scores = scores - scores.max(dim=-1, keepdim=True).values
        e = torch.exp(scores)
        w = self.keep(e / e.sum(dim=-1, keepdim=True))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class ByHandMasked(Base):
    """exp · mask / sum: the mask is a factor."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        e = (q @ k.mT / 2).exp() * ~future(x.shape[1])
        w = self.keep(e / (e.sum(-1, keepdim=True) + 1e-9))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class LogSoftmax(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(F.log_softmax(q @ k.mT / 2, dim=-1).exp())
        return self.o((w @ v).transpose(1, 2).flatten(2))


class MinusLogSumExp(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = q @ k.mT / 2
        w = self.keep(torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class OffByOne(Base):
    """exp / (1 + sum)"""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        e = torch.exp(q @ k.mT / 2)
        w = self.keep(e / (1 + e.sum(-1, keepdim=True)))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class Sink(Base):
    """A column of learned scores without values."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.randn(H))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        column = self.sink.view(1, H, 1, 1).expand(b, H, t, 1)
        w = torch.cat([q @ k.mT / 2, column], dim=-1).softmax(-1)[..., :-1]
        return self.o((self.keep(w) @ v).transpose(1, 2).flatten(2))


class InPlace(Base):
    """Scores changed in place, and the mask set by an index."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores /= 2
        scores[:, :, future(x.shape[1])] = -1e9
        w = self.keep(scores.softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class Broadcast(Base):
    """The product as a sum of broadcast factors."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / 2
        w = self.keep(scores.softmax(-1))
        z = (w.unsqueeze(-1) * v.unsqueeze(2)).sum(dim=3)
        return self.o(z.transpose(1, 2).flatten(2))


class Rotary(Base):
    """Rotation by halves, with tables of cosines."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        angles = torch.outer(torch.arange(t).float(), 100 ** -(torch.arange(0, DH, 2) / DH))
        cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[None, :, None] for f in (torch.cos, torch.sin))

        def turned(y: Tensor) -> Tensor:
            first, second = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-second, first), dim=-1) * sin

        q, k = (turned(f(x).view(b, t, H, DH)).transpose(1, 2) for f in (self.q, self.k))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ heads_second(self.v(x))).transpose(1, 2).flatten(2))


class ComplexRotary(Base):
    """Rotation as multiplication of complex numbers, as in Meta's Llama."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        angles = torch.outer(torch.arange(t).float(), 100 ** -(torch.arange(0, DH, 2) / DH))
        turn = torch.polar(torch.ones_like(angles), angles).view(1, t, 1, DH // 2)

        def turned(y: Tensor) -> Tensor:
            pairs = torch.view_as_complex(y.float().reshape(*y.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * turn).flatten(3)

        q, k = (turned(f(x).view(b, t, H, DH)).transpose(1, 2) for f in (self.q, self.k))
        w = self.keep(torch.softmax(q @ k.transpose(2, 3) / 2, dim=-1))
        return self.o((w @ heads_second(self.v(x))).transpose(1, 2).flatten(2))


class RelativeBias(Base):
    """T5: a learned bias by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, H)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        distance = (torch.arange(t)[None] - torch.arange(t)[:, None]).clamp(-4, 4) + 4
        bias = self.table(distance).permute(2, 0, 1)[None]
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(F.softmax(q @ k.transpose(3, 2) + bias, dim=-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class RelativeKeys(Base):
    """Shaw et al.: embeddings of distances added to keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(9, DH), nn.Embedding(9, DH)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        distance = (torch.arange(t)[None] - torch.arange(t)[:, None]).clamp(-4, 4) + 4
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) + torch.einsum("bhqd,qkd->bhqk", q, self.keys(distance))
        w = self.keep((scores / 2).softmax(dim=-1))
        z = torch.einsum("bhqk,bhkd->bhqd", w, v) + torch.einsum("bhqk,qkd->bhqd", w, self.values(distance))
        return self.o(z.transpose(1, 2).flatten(2))


class Alibi(Base):
    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        slopes = torch.tensor([2.0 ** -(one + 1) for one in range(H)]).view(H, 1, 1)
        bias = slopes * (torch.arange(t)[None, None, :] - torch.arange(t)[None, :, None])
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(((q @ k.mT) / 2 + bias + torch.full((t, t), -1e9).triu(1)).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class Softcap(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = 5 * torch.tanh(q @ k.mT / 10)
        w = self.keep(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype))
        return self.o(torch.matmul(w, v).transpose(1, 2).flatten(2))


class Cross(Base):
    """Queries from the first argument, keys and values from the second."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(memory)), heads_second(self.v(memory))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class CrossSwapped(Base):
    """The memory is the first argument."""

    def forward(self, memory: Tensor, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(memory)), heads_second(self.v(memory))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class ClassToken(Base):
    """A learned token before the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class MemoryTokens(Base):
    """Learned keys and values beside those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(1, H, 2, DH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        k, v = (torch.cat([m.repeat(x.shape[0], 1, 1, 1), y], dim=2) for m, y in ((self.keys, k), (self.values, v)))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class LearnedQueries(Base):
    """A Perceiver's latents attend to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, D))

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        q, k, v = heads_second(self.q(latents)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class Windows(Base):
    """Attention within windows of two positions."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        x = F.pad(x, (0, 0, 0, t % 2)).view(-1, 2, D)
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2)).view(b, -1, D)[:, :t]


class Axial(Base):
    """Attention along the rows of a grid."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, DH)).transpose(2, 3) for f in (self.q, self.k, self.v))
        w = self.keep((q @ k.mT / 2).softmax(-1))  # [batch, row, head, query, key]
        return self.o((w @ v).transpose(2, 3).flatten(3))


class Sigmoid(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        return self.o((self.keep(torch.sigmoid(q @ k.mT / 2)) @ v).transpose(1, 2).flatten(2))


class Relu(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        return self.o((self.keep(F.relu(q @ k.mT) / x.shape[1]) @ v).transpose(1, 2).flatten(2))


class Linear(Base):
    """Linear attention: no matrix of queries and keys exists."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        z = (q @ (k.mT @ v)) / (q @ k.sum(dim=2, keepdim=True).mT)
        return self.o(z.transpose(1, 2).flatten(2))


class TalkingHeads(Base):
    """Scores mixed across heads before the softmax, weights after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        scores = self.before((q @ k.mT / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        w = self.after(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.o((self.keep(w) @ v).transpose(1, 2).flatten(2))


class Returned(nn.Module):
    """A module of torch.nn, whose weights it returns itself."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.inner, self._call = module, call
        self.kept: list[Tensor] = []

    def forward(self, *inputs: Tensor) -> Tensor:
        out, weights = self._call(self.inner, inputs)
        self.kept.append(weights.detach())
        return out


def multi_head(batch_first: bool) -> nn.Module:
    return Returned(
        nn.MultiheadAttention(D, H, batch_first=batch_first),
        lambda module, x: module(x[0], x[0], x[0], average_attn_weights=False),
    )


def cross_multi_head() -> nn.Module:
    return Returned(
        nn.MultiheadAttention(D, H, batch_first=True),
        lambda module, x: module(x[0], x[1], x[1], average_attn_weights=False),
    )


class ManyHeads(Base):
    """A layer of torch.nn that keeps what its attention returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        for part in layer.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.register_forward_pre_hook(self._with_weights, with_kwargs=True)
                part.register_forward_hook(self._keep)

    def _with_weights(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        self.kept.append(output[1].detach())

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.layer(*inputs)


class Checkpointed(Usual):
    """Recomputed in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Autocast(Usual):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class OwnSoftmax(torch.autograd.Function):
    """A softmax with its own backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (grad - (grad * weights).sum(-1, keepdim=True))


class CustomFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(OwnSoftmax.apply(q @ k.mT / 2))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class Einops(Base):
    """Views as einops writes them, by reshape and permute of strings; scores by einsum with an ellipsis."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).reshape(*x.shape[:-1], H, DH).movedim(-2, -3) for f in (self.q, self.k, self.v))
        w = self.keep(torch.einsum("...id,...jd->...ij", q, k).softmax(-1))
        return self.o(torch.einsum("...ij,...jd->...id", w, v).movedim(-3, -2).reshape(x.shape))


class Tensordot(Unbatched):
    """One text, by tensordot over an axis of both."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        w = self.keep(torch.tensordot(q, k, dims=([1], [1])).div(4).softmax(1))
        return self.o(torch.mm(w, v))


class Stacked(Base):
    """Heads as a list of projections, stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.qs, self.ks, self.vs = (nn.ModuleList(nn.Linear(D, DH) for _ in range(H)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack([f(x) for f in parts], dim=1) for parts in (self.qs, self.ks, self.vs))
        w = self.keep((q @ k.transpose(2, 3) / 2).softmax(3))
        return self.o(torch.cat((w @ v).unbind(1), dim=-1))


class ViT(Base):
    """timm's way: one projection for q, k and v, unbound from the first of five axes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, H, c // H).permute(2, 0, 3, 1, 4).unbind(0)
        w = self.keep(((q * 0.5) @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.o((w @ v).transpose(1, 2).reshape(b, n, c))


class ViTIndexed(ViT):
    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, H, DH).permute(2, 0, 3, 1, 4)
        w = self.keep((qkv[0] @ qkv[1].transpose(-2, -1) / 2).softmax(dim=-1))
        return self.o((w @ qkv[2]).transpose(1, 2).reshape(b, n, c))


class Interleaved(ViT):
    """Megatron's way: q, k and v of each head side by side."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (H, 3 * DH)).transpose(1, 2).chunk(3, dim=-1)
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class ChannelsFirst(nn.Module):
    """Attention over the pixels of a map [batch, channel, row, column], by convolutions of width 1."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o, self.kept = nn.Conv2d(D, 3 * D, 1), nn.Conv2d(D, D, 1), []

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, H, DH, h * w).unbind(1)
        weights = torch.einsum("bhdi,bhdj->bhij", q, k).div(2).softmax(-1)
        self.kept.append(weights.detach())
        return self.o(torch.einsum("bhij,bhdj->bhdi", weights, v).reshape(b, c, h, w))


class LocalMask(Base):
    """A band of three positions, as an added mask."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        mask = torch.zeros(n, n).masked_fill_(distance > 1, torch.finfo(torch.float32).min)
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(torch.nn.functional.softmax((q @ k.mT / 2).add(mask), dim=-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class LinearBias(Base):
    """A two-layer post-norm block whose attention returns its weights too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 24), nn.Linear(24, D)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        x = self.norm(x + self.o((w @ v).transpose(1, 2).flatten(2)))
        return self.norm(x + self.down(F.relu(self.up(x)))), w


class Siamese(Base):
    """One attention of one head for two inputs, whose outputs are added: two layers, not two heads."""

    def attend(self, x: Tensor) -> Tensor:
        return self.keep((self.q(x) @ self.k(x).mT / 4).softmax(-1)) @ self.v(x)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.o(self.attend(x).mean(1) + self.attend(y).mean(1))[:, None]


class TwoSequences(Base):
    """Two attentions of one text, one after the other, each of one head."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + self.keep((self.q(x) @ self.k(x).mT / 4).softmax(-1)) @ self.v(x)
        return x


class LoopOverBatch(Base):
    """One text at a time."""

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for one in x:
            q, k, v = (f(one).view(-1, H, DH).transpose(0, 1) for f in (self.q, self.k, self.v))
            found.append((self.keep((q @ k.mT / 2).softmax(-1)) @ v).transpose(0, 1).flatten(1))
        return self.o(torch.stack(found))


class ChunkedQueries(Base):
    """Two queries at a time, to save memory."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        found = [self.keep((part @ k.mT / 2).softmax(-1)) @ v for part in q.split(2, dim=2)]
        return self.o(torch.cat(found, dim=2).transpose(1, 2).flatten(2))


class JoinedScores(Base):
    """Scores of a memory beside those of the input, in one softmax."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        far, values = heads_second(self.k(memory)), heads_second(self.v(memory))
        w = self.keep(torch.cat([q @ far.mT, q @ k.mT], dim=-1).div(2).softmax(-1))
        near, beyond = w[..., memory.shape[1] :], w[..., : memory.shape[1]]
        return self.o((near @ v + beyond @ values).transpose(1, 2).flatten(2))


class OverQueries(Base):
    """The softmax runs over the queries, by mistake."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        return self.o((self.keep((q @ k.mT / 2).softmax(-2)) @ v).transpose(1, 2).flatten(2))


class NotSplit(Base):
    """Heads are split by a view without a transposition, by mistake: each head gets other positions."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, H, n, DH) for f in (self.q, self.k, self.v))
        w = self.keep((q @ k.mT / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).reshape(b, n, D))


def layer_of(kind: type[nn.Module], *, batch_first: bool, norm_first: bool = False) -> Callable[[], nn.Module]:
    return lambda: ManyHeads(kind(D, H, 20, batch_first=batch_first, norm_first=norm_first))


def transformer(*, batch_first: bool) -> nn.Module:
    return ManyHeads(nn.Transformer(D, H, 1, 1, 20, batch_first=batch_first))


def positions_first_pair(batch: int, n: int) -> tuple[Tensor, ...]:
    return tuple(one.transpose(0, 1) for one in two_streams(batch, n))


def picture(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, D, 2, n, generator=torch.Generator().manual_seed(n)),)


def grid(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, n, D, generator=torch.Generator().manual_seed(n)),)


def one_by_one(kept: list[Tensor]) -> list[Tensor]:
    """Heads that were kept one after the other, in layers."""
    return [torch.stack(kept[at : at + H], dim=1) for at in range(0, len(kept), H)]


def to_heads(order: str) -> Callable[[list[Tensor]], list[Tensor]]:
    """From axes in this order to [batch, head, query, key], as "bqhk"."""
    return lambda kept: [torch.einsum(f"{order}->bhqk", one) for one in kept]


def flat_batch_outer(kept: list[Tensor]) -> list[Tensor]:
    return [one.unflatten(0, (-1, H)) for one in kept]


def flat_head_outer(kept: list[Tensor]) -> list[Tensor]:
    return [one.unflatten(0, (H, -1)).transpose(0, 1) for one in kept]


ZOO: dict[str, Animal] = {
    "usual": Animal(Usual),
    "gpt": Animal(Gpt, ids),
    "heads last": Animal(HeadsLast, own=to_heads("bqhk")),
    "heads first": Animal(HeadsFirst, own=to_heads("hbqk")),
    "flat": Animal(Flat, own=flat_batch_outer),
    "flat, heads first, by cat": Animal(FlatHeadsFirst, own=flat_head_outer),
    "flat, heads first": Animal(FlatHeadsOuter, own=flat_head_outer),
    "keys first": Animal(KeysFirst, own=to_heads("bhkq")),
    "keys first, einsum": Animal(KeysFirstEinsum, own=to_heads("kqbh")),
    "positions first": Animal(PositionsFirst, positions_first, flat_batch_outer),
    "unbatched": Animal(Unbatched, unbatched, lambda kept: [one[None] for one in kept]),
    "one module per head": Animal(OneModulePerHead, own=one_by_one),
    "summed heads": Animal(SummedHeads, own=one_by_one),
    "loop over heads": Animal(LoopOverHeads, own=one_by_one),
    "einsum weights": Animal(EinsumWeights),
    "parameters": Animal(Parameters),
    "baddbmm": Animal(Baddbmm),
    "sdpa": Animal(Sdpa),
    "sdpa, flat": Animal(SdpaFlat),
    "sdpa, one head": Animal(SdpaOneHead),
    "sdpa, grouped": Animal(SdpaGrouped),
    "grouped": Animal(Grouped),
    "grouped, expanded": Animal(GroupedExpanded),
    "grouped, five axes": Animal(GroupedAxes, own=lambda kept: [one.flatten(1, 2) for one in kept]),
    "softmax as a submodule": Animal(SubmoduleSoftmax),
    "exp and sum": Animal(ByHand),
    "exp, mask and sum": Animal(ByHandMasked),
    "log_softmax": Animal(LogSoftmax),
    "minus logsumexp": Animal(MinusLogSumExp),
    "off by one": Animal(OffByOne),
    "sink": Animal(Sink),
    "in place": Animal(InPlace),
    "broadcast": Animal(Broadcast),
    "rotary": Animal(Rotary),
    "complex rotary": Animal(ComplexRotary),
    "relative bias": Animal(RelativeBias),
    "relative keys": Animal(RelativeKeys),
    "alibi": Animal(Alibi),
    "softcap": Animal(Softcap),
    "cross": Animal(Cross, two_streams),
    "cross, swapped": Animal(CrossSwapped, two_streams),
    "class token": Animal(ClassToken),
    "memory tokens": Animal(MemoryTokens),
    "learned queries": Animal(LearnedQueries),
    "nn.MultiheadAttention": Animal(lambda: multi_head(True)),
    "nn.MultiheadAttention, positions first": Animal(lambda: multi_head(False), positions_first),
    "nn.MultiheadAttention, cross": Animal(cross_multi_head, two_streams),
    "encoder layer": Animal(layer_of(nn.TransformerEncoderLayer, batch_first=True)),
    "encoder layer, norm first": Animal(layer_of(nn.TransformerEncoderLayer, batch_first=True, norm_first=True)),
    "encoder layer, positions first": Animal(layer_of(nn.TransformerEncoderLayer, batch_first=False), positions_first),
    "decoder layer": Animal(layer_of(nn.TransformerDecoderLayer, batch_first=True), two_streams),
    "decoder layer, positions first": Animal(
        layer_of(nn.TransformerDecoderLayer, batch_first=False, norm_first=True), positions_first_pair
    ),
    "nn.Transformer": Animal(lambda: transformer(batch_first=True), two_streams),
    "nn.Transformer, positions first": Animal(lambda: transformer(batch_first=False), positions_first_pair),
    "checkpointed": Animal(Checkpointed),
    "autocast": Animal(Autocast),
    "custom function": Animal(CustomFunction),
    "einops": Animal(Einops),
    "tensordot": Animal(Tensordot, unbatched, lambda kept: [one[None, None] for one in kept]),
    "stacked": Animal(Stacked),
    "vit": Animal(ViT),
    "vit, indexed": Animal(ViTIndexed),
    "interleaved": Animal(Interleaved),
    "channels first": Animal(ChannelsFirst, picture),
    "local mask": Animal(LocalMask),
    "returns weights": Animal(LinearBias),
    "siamese": Animal(Siamese, two_streams, own=lambda kept: [one[:, None] for one in kept]),
    "two layers of one head": Animal(TwoSequences, own=lambda kept: [one[:, None] for one in kept]),
    "over queries": Animal(OverQueries),
    "not split": Animal(NotSplit, refused="what the axes mean"),
    "loop over the batch": Animal(LoopOverBatch, refused="piece by piece"),
    "chunked queries": Animal(ChunkedQueries, refused="piece by piece"),
    "joined scores": Animal(JoinedScores, two_streams, refused="joined from several products"),
    "windows": Animal(Windows, refused="within windows"),
    "axial": Animal(Axial, grid, refused="along one of several axes"),
    "sigmoid": Animal(Sigmoid, refused="from sigmoid, not from a softmax"),
    "relu": Animal(Relu, refused="from relu, not from a softmax"),
    "linear": Animal(Linear, refused="Nothing that it computes is attention"),
    "talking heads": Animal(TalkingHeads, refused="mix"),
}
