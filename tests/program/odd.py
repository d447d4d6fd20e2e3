"""More hand-written attentions: of one query, with cached keys, in scripted or vectorised code, by other products."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.program.zoo import DH, Animal, Base, D, H, future, heads_second, ids, vectors


def scripted(code: Any) -> Any:
    """A function or module in TorchScript, which old packages use."""
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(code)


@scripted
def scripted_cap(scores: Tensor, cap: float) -> Tensor:
    return (scores / cap).tanh() * cap


@scripted
def scripted_softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


@scripted
def scripted_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 2.0).softmax(-1) @ v


class Odd(Base):
    """The usual projections; a subclass computes z [batch, head, query, d_head]."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        return self.o(self.z(q, k, v, *others).transpose(1, 2).flatten(2))

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return self.keep(self.pattern(q, k)) @ v

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1)


class BinaryMaximum(Odd):
    """A floor by torch.max of two tensors."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = (q @ k.mT / 2).masked_fill(future(q.shape[2]), -math.inf)
        return torch.max(scores, torch.full((), -1e4)).softmax(-1)


class SinkPerQuery(Odd):
    """A sink column from a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Linear(DH, 1)

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.cat([q @ k.mT / 2, self.sink(q)], dim=-1).softmax(-1)[..., :-1]


class ClassQuery(Odd):
    """Only the first position asks."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return self.keep(self.pattern(q[:, :, :1], k)) @ v


class OneKey(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return self.keep(self.pattern(q, k[:, :, :1])) @ v[:, :, :1] + v


class LearnedQuery(Base):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            heads_second(self.q(self.query.expand(len(x), -1, -1))),
            heads_second(self.k(x)),
            heads_second(self.v(x)),
        )
        return self.o((self.keep((q @ k.mT / 2).softmax(-1)) @ v).transpose(1, 2).flatten(2))


class LearnedQueryKernel(LearnedQuery):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            heads_second(self.q(self.query.expand(len(x), -1, -1))),
            heads_second(self.k(x)),
            heads_second(self.v(x)),
        )
        self.keep((q @ k.mT / 2).softmax(-1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class PastKeys(Odd):
    """Keys and values of earlier positions are arguments."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return self.keep(self.pattern(q, torch.cat([others[0], k], dim=2))) @ torch.cat([others[1], v], dim=2)


class PaddedKeys(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        none = torch.zeros_like(k[:, :, :1])
        return self.keep(self.pattern(q, torch.cat([none, k], dim=2))) @ torch.cat([none, v], dim=2)


class IndexMask(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores, (rows, columns) = q @ k.mT / 2, torch.triu_indices(q.shape[2], q.shape[2], 1)
        scores[:, :, rows, columns] = -1e9
        return scores.softmax(-1)


class Cosine(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((H, 1, 1), 1.5))

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return (cosines * self.temperature.exp().clamp(max=10)).softmax(-1)


class Distances(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return (-torch.cdist(q, k)).softmax(-1)


class Sublists(Base):
    """Einsum with lists of axes in place of letters."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, DH)) for f in (self.q, self.k, self.v))
        w = self.keep(torch.einsum(q, [0, 1, 2, 3], k, [0, 4, 2, 3], [0, 2, 1, 4]).div(2).softmax(-1))
        return self.o(torch.einsum(w, [0, 2, 1, 4], v, [0, 4, 2, 3], [0, 1, 2, 3]).flatten(2))


class Convolved(Base):
    """Projections by a convolution, and keys before queries in the last product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv1d(D, 3 * D, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.transpose(1, 2)).unflatten(1, (3, H, DH)).unbind(1)  # [batch, head, d_head, pos]
        return self.o((v @ self.keep((q.mT @ k / 2).softmax(-1)).mT).flatten(1, 2).transpose(1, 2))


class Flex(Odd):
    """The kernel of `flex_attention` with a mask."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        n = q.shape[2]
        self.keep((q @ k.mT / 2).masked_fill(future(n), -math.inf).softmax(-1))
        mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, n, n, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)  # type: ignore[return-value]


class FlexChanged(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda score, b, h, query, key: score + key)  # type: ignore[return-value]


class OverDepth(Odd):
    """At each position over two states of it, and then over the positions."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        states = torch.stack([k, v], dim=-2)  # [batch, head, pos, state, d_head]
        query = torch.ones(DH).expand(*states.shape[:-2], 1, -1)
        mixed = F.scaled_dot_product_attention(query, states, states).squeeze(-2)
        return self.keep(self.pattern(q, k)) @ mixed


class Channels(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return ((q.mT @ k).softmax(-1) @ v.mT).mT


class Reattention(Odd):
    """The weights are mixed across heads after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(H, H))

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqk,hg->bgqk", super().pattern(q, k), self.mix)


class Averaged(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return super().pattern(q, k).mean(dim=1, keepdim=True)


class Together(Odd):
    """One softmax over all pairs of positions."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        return scores.flatten(2).softmax(-1).view_as(scores)


class Additive(Base):
    """Bahdanau et al. 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(D, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.energy(torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])).squeeze(-1)
        return self.o(scores.softmax(-1) @ self.v(x))


class Bilinear(Base):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Bilinear(D, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        pairs = (x[:, :, None].expand(-1, -1, n, -1).contiguous(), x[:, None].expand(-1, n, -1, -1).contiguous())
        return self.o(self.score(*pairs)[..., 0].softmax(-1) @ self.v(x))


class Largest(Odd):
    """Only the two largest scores of a query, scattered into a tensor of −∞."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        values, at = scores.topk(2, dim=-1)
        return torch.full_like(scores, -math.inf).scatter(-1, at, values).softmax(-1)


class ThreeOperands(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, DH)) for f in (self.q, self.k, self.v))
        w = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd,hd->bqhd", w, v, torch.ones(H, DH)).flatten(2))


class ScriptedScores(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return scripted_cap(q @ k.mT / 2, 5.0).softmax(-1)


class ScriptedWeights(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return scripted_softmax(q @ k.mT / 2)


class Scripted(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return scripted_attention(q, k, v)


class Vectorised(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.func.vmap(lambda one, other: (one @ other.mT / 2).softmax(-1))(q, k)


class ThroughNumpy(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.from_numpy((q @ k.mT / 2).detach().numpy()).softmax(-1)


class CachedKeys(nn.Module):
    """The reference code of Llama: keys and values are written into tensors that are kept for later positions."""

    def __init__(self, *, as_buffers: bool) -> None:
        super().__init__()
        self.embed, self.out, self.kept = nn.Embedding(23, D), nn.Linear(D, 23), []
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        for name in ("past_k", "past_v"):
            past = torch.full((4, 32, H, DH), 0.5)
            self.register_buffer(name, past) if as_buffers else setattr(self, name, past)

    @torch.inference_mode()
    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        batch, n = ids.shape
        x = self.embed(ids)
        q, k, v = (f(x).view(batch, n, H, DH) for f in (self.q, self.k, self.v))
        self.past_k[:batch, start : start + n] = k
        self.past_v[:batch, start : start + n] = v
        k, v = self.past_k[:batch, : start + n].transpose(1, 2), self.past_v[:batch, : start + n].transpose(1, 2)
        scores = torch.matmul(q.transpose(1, 2), k.transpose(2, 3)) / 2
        scores = scores + torch.full((n, n), -math.inf).triu(start + 1)
        w = F.softmax(scores.float(), dim=-1).type_as(q)
        self.kept.append(w.clone())
        return self.out(torch.matmul(w, v).transpose(1, 2).contiguous().view(batch, n, -1)).float()


class TwoProducts(Odd):
    """Scores of content plus scores of position; all heads share the keys of position."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(D, DH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        w = self.keep(((q @ k.mT + q @ self.shared(x)[:, None].mT) / 2).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


class FilledQueries(TwoProducts):
    """Queries and keys of two parts, written into empty tensors."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        query, key = x.new_empty(*q.shape[:3], 2 * DH), x.new_empty(*q.shape[:3], 2 * DH)
        query[..., :DH], query[..., DH:] = q, q
        key[..., :DH], key[..., DH:] = k, self.shared(x)[:, None]
        return self.o((self.keep((query @ key.mT / 2).softmax(-1)) @ v).transpose(1, 2).flatten(2))


class OneKeyForAll(TwoProducts):
    """Keys without an axis of heads (Shazeer 2019), by einsum."""

    def forward(self, x: Tensor) -> Tensor:
        k = self.shared(x)
        w = self.keep(torch.einsum("bhqd,bkd->bhqk", heads_second(self.q(x)), k).div(2).softmax(-1))
        return self.o(torch.einsum("bhqk,bkd->bhqd", w, k).transpose(1, 2).flatten(2))


class HeadsAmongQueries(TwoProducts):
    """The heads of a query as further queries: positions and heads in one axis."""

    def forward(self, x: Tensor) -> Tensor:
        k = self.shared(x)
        w = (self.q(x).view(len(x), -1, DH) @ k.mT / 2).softmax(-1)
        self.keep(w.unflatten(1, (-1, H)).transpose(1, 2))
        return self.o((w @ k).reshape(x.shape))


class RelativeShift(Odd):
    """Transformer-XL: a view that shifts each row by another number of places."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(H, 1, DH))

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        places = torch.arange(n)[:, None] * torch.arange(1, DH + 1) / n
        far = (
            F.pad((q + self.bias) @ places.cos().mT, (1, 0))
            .view(*q.shape[:2], n + 1, n)[:, :, 1:]
            .view(*q.shape[:3], n)
        )
        return ((q @ k.mT + far) / 2).masked_fill(future(n), -1e30).softmax(-1)


class Bare(Base):
    """No projections before the products."""

    def forward(self, x: Tensor) -> Tensor:
        w = (x @ x.mT).softmax(-1)
        self.keep(w[:, None])
        return self.o(w @ x)


class Reciprocal(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        exponentials = (q @ k.mT / 2).exp()
        return exponentials * (1 / exponentials.sum(-1, keepdim=True))


class DifferentialOutputs(Odd):
    """The outputs of two attentions of one helper, called twice in one line."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return super().z(q, k, v) - 0.4 * super().z(k, q, v)


class InComprehension(Base):
    """Several projections, whose attentions are computed in one loop and added."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        k, v = heads_second(self.k(x)), heads_second(self.v(x))
        every = [self.keep((heads_second(f(x)) @ k.mT / 2).softmax(-1)) @ v for f in (self.q, self.more)]
        return self.o((every[0] + every[1]).transpose(1, 2).flatten(2))


class BetweenHeads(Base):
    """The heads are not before the positions, by mistake."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], H, DH) for f in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


class BetweenHeadsKernel(BetweenHeads):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Halves(Odd):
    """The first queries, and the others, in lines of their own."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        first = self.pattern(q[:, :, :2], k) @ v
        return torch.cat([first, (q[:, :, 2:] @ k.mT / 2).softmax(-1) @ v], dim=2)


class TextAfterText(Odd):
    """The texts of the batch, in calls of their own."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        z = [self.attend(q[0], k[0], v[0]), self.attend(q[1], k[1], v[1]), self.attend(q[2], k[2], v[2])]
        return self.o(torch.stack(z).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.pattern(q, k) @ v


class Landmarks(Odd):
    """Xiong et al. 2021, in simple terms: queries attend to a mean of the keys, which attends to the keys; named in order."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        landmark = k.mean(2, keepdim=True)
        first, second = self.keep(self.pattern(q, landmark)), self.keep(self.pattern(landmark, k))
        return first @ (second @ v)


class RecurrentDecoder(Base):
    """Bahdanau et al. 2015, in simple terms: each state attends to the text, and gives the next one."""

    def forward(self, x: Tensor) -> Tensor:
        k, states = self.k(x), [self.q(x[:, 0])]
        for _ in range(x.shape[1] - 1):
            weights = (states[-1][:, None] @ k.mT).softmax(-1)
            states.append(torch.tanh(states[-1] + (weights @ k)[:, 0]))
        return self.o(torch.stack(states, dim=1))


class KeptHeads(Odd):
    """A loop over the heads, whose outputs are kept beside."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        q, k, v = heads_second(self.q(x)), heads_second(self.k(x)), heads_second(self.v(x))
        weights = [self.pattern(q[:, head], k[:, head]) for head in range(H)]
        z = [one @ v[:, head] for head, one in enumerate(weights)]
        self.keep(torch.stack(weights, dim=1))
        self.outputs = torch.stack(z, dim=1)
        return self.o(torch.cat(z, dim=-1))


class Exponentials(Odd):
    """Exponentials, normalised by a function of them."""

    def __init__(self, normalised: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.normalised = normalised

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return self.normalised(q @ k.mT / 2)


def over_ones(scores: Tensor) -> Tensor:
    weights = scores.exp()
    return weights / (weights @ torch.ones(scores.shape[-1], 1))


def over_columns(scores: Tensor) -> Tensor:
    weights = scores.exp().mT
    return (weights / weights.sum(-2, keepdim=True)).mT


def over_largest(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().amax(-1, keepdim=True)


def masked_by_einsum(scores: Tensor) -> Tensor:
    weights = torch.einsum("bhqk,qk->bhqk", scores.exp(), torch.ones(scores.shape[-2:]).tril())
    return weights / weights.sum(-1, keepdim=True)


SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax by einsum": lambda t: t.exp() / torch.einsum("bhqk->bhq", t.exp())[..., None],
    "softmax by ones": over_ones,
    "softmax over columns": over_columns,
    "softmax by tril": lambda t: t.exp().tril() / t.exp().tril().sum(-1, keepdim=True),
    "softmax by negative power": lambda t: t.exp() * t.exp().sum(-1, keepdim=True) ** -1,
    "softmax by power of two": lambda t: 2.0**t / (2.0**t).sum(-1, keepdim=True),
    "softmax by logarithms": lambda t: (t - t.exp().sum(-1, keepdim=True).log()).exp(),
    "softmax by mean": lambda t: t.exp() / (t.exp().mean(-1, keepdim=True) * t.shape[-1]),
    "softmax by einsum, twice": lambda t: torch.einsum(
        "bhqk,bhq->bhqk", t.exp(), torch.einsum("bhqk->bhq", t.exp()).reciprocal()
    ),
    "masked by einsum": masked_by_einsum,
    "softmax by divide": lambda t: torch.divide(t.exp(), t.exp().sum(-1, keepdim=True)),
    "softmax of torch.special": lambda t: torch.special.softmax(t, -1),
    "softmax of rows": lambda t: t.reshape(-1, t.shape[-1]).softmax(1).view(t.shape),
}
OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "over the largest": (over_largest, "its weights come from exp, in steps that are not recognised as a softmax"),
    "over the sum so far": (lambda t: t.exp() / t.exp().cumsum(-1), "its weights come from exp, in steps"),
    "over another sum": (
        lambda t: t.exp() / (2 * t).exp().sum(-1, keepdim=True),
        "its weights come from exp, in steps",
    ),
    "over the heads": (lambda t: t.exp() / torch.einsum("bhqk->bqk", t.exp())[:, None], "normalised over head"),
    "of two exponentials": (
        lambda t: t.exp() * (t / 2).exp() / (t.exp() * (t / 2).exp()).sum(-1, keepdim=True),
        "its weights come from exp, in steps",
    ),
    "squares": (lambda t: t**2 / (t**2).sum(-1, keepdim=True), "its weights come from pow, not from a softmax"),
    "softmin": (lambda t: F.softmin(t, dim=-1), "its weights come from softmin, in steps"),
}


class Differential(Odd):
    """Ye et al. 2025."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        (q, q2), (k, k2) = q.chunk(2, -1), k.chunk(2, -1)
        return super().pattern(q, k) - 0.4 * super().pattern(q2, k2)


class DifferentialHeads(Odd):
    """The same with one softmax over twice as many heads."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (one.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2) for one in (q, k))
        first, second = super().pattern(q, k).unflatten(1, (H, 2)).unbind(2)
        return first - 0.4 * second


class Gated(Odd):
    """ConViT (d'Ascoli et al. 2021): weights of the content and of the positions, mixed for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.places = nn.Parameter(torch.randn(H, 1, 1)), nn.Parameter(torch.randn(H, 16, 16))

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        gate, n = self.gate.sigmoid(), q.shape[2]
        weights = (1 - gate) * super().pattern(q, k) + gate * self.places[:, :n, :n].softmax(-1)
        return weights / weights.sum(-1, keepdim=True)


class WrittenWeights(Odd):
    """The weights of each head are written into a tensor."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        weights = q.new_zeros(*q.shape[:3], k.shape[2])
        for head in range(H):
            weights[:, head] = (q[:, head] @ k[:, head].mT / 2).softmax(-1)
        return weights


class KeptWeights(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.zeros(3, H, 16, 16))

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        self.weights[: len(q), :, : q.shape[2], : k.shape[2]] = super().pattern(q, k)
        return self.weights[: len(q), :, : q.shape[2], : k.shape[2]]


class WrittenScores(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q.new_zeros(*q.shape[:3], k.shape[2])
        for head in range(H):
            scores[:, head] = q[:, head] @ k[:, head].mT / 2
        return scores.softmax(-1)


def quantised() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(Odd(), {nn.Linear}, dtype=torch.qint8)


class WindowAtATime(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        windows = zip(*(one.split(2, dim=2) for one in (q, k, v)), strict=True)
        return torch.cat([self.pattern(q, k) @ v for q, k, v in windows], dim=2)


class Sorted(Odd):
    """Positions in the order of a hash of each head, as in the Reformer (Kitaev et al. 2020)."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        order = q[..., 0].argsort(-1)
        at = order[..., None].expand_as(q)
        mixed = self.pattern(q.gather(2, at), k.gather(2, at)) @ v.gather(2, at)
        return mixed.gather(2, order.argsort(-1)[..., None].expand_as(q))


class Rolled(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return super().pattern(q, k.roll(1, dims=2))


class Backwards(Odd):
    """Keys from the last to the first, by an index."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        order = torch.arange(k.shape[2] - 1, -1, -1)
        return self.pattern(q, k[:, :, order]) @ v[:, :, order]


class WindowBySubmodule(Base):
    """One module is called for each window of two positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Odd()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x[:, at : at + 2]) for at in range(0, x.shape[1], 2)], dim=1)


class Flipped(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return super().pattern(q, k).flip(-1)


class StackedPositions(Odd):
    """Two vectors for each step, one after the other, as states and actions of a game."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return super().forward(torch.stack([x, x.flip(-1)], dim=1).permute(0, 2, 1, 3).reshape(len(x), -1, D))


class OneQueryAtATime(Base):
    """In a loop over the queries, for inputs of one length only: queries are no heads."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] in (5, H)
        k, v = self.k(x), self.v(x)
        rows = [torch.einsum("bd,bkd->bk", q, k).softmax(-1) for q in self.q(x).unbind(1)]
        return self.o(torch.stack([torch.einsum("bk,bkd->bd", w, v) for w in rows], dim=1))


class OneQuerySliceAtATime(OneQueryAtATime):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] in (5, H)
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o(torch.cat([(q[:, at : at + 1] @ k.mT).softmax(-1) @ v for at in range(x.shape[1])], dim=1))


class ChangedDiagonal(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        scores.diagonal(dim1=-2, dim2=-1).fill_(-1e4)
        return scores.softmax(-1)


class ChangedKey(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        scores[..., :1].fill_(-1e9)
        return scores.softmax(-1)


class ChangedHead(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        weights = super().pattern(q, k)
        weights[:, 0].mul_(0.5)
        return weights


class ChangedTransposed(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        scores.mT.masked_fill_(future(q.shape[2]).mT, -1e9)
        return scores.softmax(-1)


class ChangedZ(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        z = super().z(q, k, v)
        z[:, 0].zero_()
        return z


class WrittenZ(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        z = super().z(q, k, v)
        z[:, 0] = 0.0
        return z


class ChangedTransposedZ(Odd):
    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        z = super().z(q, k, v)
        joined = z.transpose(1, 2)
        joined[:, :, 1] = 0.0
        return joined.transpose(1, 2)


class CopiedZ(Odd):
    """What is changed in place is not z itself."""

    def z(self, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        z = super().z(q, k, v).clone()
        z[:, 0].zero_()
        return z


class ReorderedHeads(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return super().pattern(q, k)[:, [2, 1, 0]]


class GroupsLast(Base):
    """Groups of queries: [group, query in group] in the weights, [query in group, group] in z."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        q = self.q(x).view(*x.shape[:2], 2, 3, 2)
        k, v = (f(x).view(*x.shape[:2], 3, 4)[..., :2] for f in (self.k, self.v))
        w = torch.einsum("bnrgd,bmgd->bgrnm", q, k).softmax(-1)
        self.keep(w.flatten(1, 2))
        return self.o(torch.einsum("bgrnm,bmgd->bnrgd", w, v).flatten(2))


class MaskedByRows(Odd):
    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        for at in range(scores.shape[-1]):
            scores[:, :, at, at + 1 :] = -1e9
        return scores.softmax(-1)


class AfterLoop(Odd):
    """Products in a loop over positions, before those of the attention."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        state = torch.zeros_like(q[:, :, 0])
        for at in range(q.shape[2]):
            state = torch.tanh(state @ torch.eye(DH) + q[:, :, at])
        return super().pattern(q, k)


class BetweenTexts(Odd):
    """A layer between positions, then one between the texts of the batch."""

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return super().forward(super().forward(x).transpose(0, 1)).transpose(0, 1)


def past_keys(batch: int, n: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    return (*vectors(batch, n), *(torch.randn(batch, H, 2, DH, generator=generator) for _ in range(2)))


NOT_SEEN, NO_PRODUCT = "code whose steps cannot be observed", "not one product of queries and keys"
BETWEEN_HEADS = "between the heads of each position, as its operands are [batch, pos, head, d_head]"
CHANGED = "its {} are changed in place through a view with other axes, as a slice or a transpose (odd.py:"
CHANGED_Z = "its z is changed in place in a slice, or through a view such as a transpose (odd.py:"
_READ: dict[str, Callable[[], nn.Module]] = {
    "binary maximum": BinaryMaximum, "sink per query": SinkPerQuery, "class query": ClassQuery, "one key": OneKey,
    "learned query": LearnedQuery, "learned query, sdpa": LearnedQueryKernel, "padded keys": PaddedKeys,
    "index mask": IndexMask, "cosine": Cosine, "distances": Distances, "einsum with lists": Sublists,
    "convolved": Convolved, "flex_attention": Flex, "over depth": OverDepth, "two products": TwoProducts,
    "filled queries": FilledQueries, "one key for all": OneKeyForAll, "heads among queries": HeadsAmongQueries,
    "relative shift": RelativeShift, "bare": Bare, "stacked positions": StackedPositions,
    "reciprocal": Reciprocal, "differential, by outputs": DifferentialOutputs, "in a comprehension": InComprehension,
    "kept heads": KeptHeads, "landmarks": Landmarks,
    "masked by rows": MaskedByRows, "after a loop": AfterLoop, "copied z": CopiedZ,
}  # fmt: skip
_REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "flex_attention, changed scores": (FlexChanged, "a score_mod of flex_attention"),
    "channels": (Channels, "between channels, not between positions"),
    "re-attention": (Reattention, "mixed across heads"),
    "averaged weights": (Averaged, "changed between the softmax and the values"),
    "one softmax for all": (Together, "over queries and keys together"),
    "additive": (Additive, NO_PRODUCT),
    "bilinear": (Bilinear, NO_PRODUCT),
    "largest scores": (Largest, NO_PRODUCT),
    "three operands": (ThreeOperands, "einsum of these operands is not followed"),
    "differential": (Differential, "combine several softmaxes"),
    "differential, by heads": (DifferentialHeads, "heads are combined"),
    "sorted": (Sorted, "gather"),
    "rolled": (Rolled, "roll"),
    "backwards": (Backwards, "getitem"),
    "window by submodule": (WindowBySubmodule, "in a loop over windows"),
    "flipped weights": (Flipped, "changed between the softmax and the values"),
    "gated": (Gated, "combine several softmaxes"),
    "written weights": (
        WrittenWeights,
        f"its weights are written into a tensor that was made before them, in {H} pieces",
    ),
    "kept weights": (KeptWeights, "its weights are written into a tensor that was made before them ("),
    "written scores": (WrittenScores, f"its scores are written into a tensor that was made before them, in {H} pieces"),
    "changed diagonal": (ChangedDiagonal, CHANGED.format("scores")),
    "changed key": (ChangedKey, CHANGED.format("scores")),
    "changed head": (ChangedHead, CHANGED.format("weights")),
    "changed transposed": (ChangedTransposed, CHANGED.format("scores")),
    "changed z": (ChangedZ, CHANGED_Z),
    "written z": (WrittenZ, CHANGED_Z),
    "changed transposed z": (ChangedTransposedZ, CHANGED_Z),
    "reordered heads": (ReorderedHeads, "its heads change their order between the softmax and the values"),
    "groups last": (GroupsLast, "its heads have another order in the product with the values than in the weights"),
    "between texts": (BetweenTexts, "it attends along another axis of the input than the layers before it"),
    "quantised": (quantised, "after the quantised projection linear_dynamic (odd.py:"),
    "one window at a time": (WindowAtATime, "piece by piece in a loop over windows of positions"),
    "one query at a time": (OneQueryAtATime, "piece by piece in a loop over its queries"),
    "one query at a time, sliced": (OneQuerySliceAtATime, "piece by piece in a loop over its queries"),
    "between heads": (BetweenHeads, BETWEEN_HEADS),
    "between heads, sdpa": (BetweenHeadsKernel, BETWEEN_HEADS),
    "two halves": (Halves, "in several pieces, over its queries"),
    "text after text": (TextAfterText, "in several pieces, over its batch"),
    "recurrent decoder": (RecurrentDecoder, "piece by piece in a loop over its queries"),
    "scripted scores": (ScriptedScores, NOT_SEEN),
    "scripted weights": (ScriptedWeights, NOT_SEEN),
    "scripted attention": (Scripted, NOT_SEEN),
    "vectorised": (Vectorised, NOT_SEEN),
    "through NumPy": (ThroughNumpy, NOT_SEEN),
}
ODD: dict[str, Animal] = {
    "cached keys": Animal(lambda: CachedKeys(as_buffers=False), ids),
    "cached keys in buffers": Animal(lambda: CachedKeys(as_buffers=True), ids),
    **{name: Animal(build) for name, build in _READ.items()},
    **{name: Animal(partial(Exponentials, function)) for name, function in SOFTMAXES.items()},
    **{name: Animal(partial(Exponentials, function), refused=reason) for name, (function, reason) in OTHERS.items()},
    **{name: Animal(build, refused=reason) for name, (build, reason) in _REFUSED.items()},
}
PAST_KEYS = Animal(PastKeys, past_keys)
