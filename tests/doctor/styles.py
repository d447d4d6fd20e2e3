"""Small models as they are written by hand, in several styles, optionally with one fault in layer `LAYER`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYER = 1
VOCAB, WIDTH, N_LAYERS, BLOCK = 53, 24, 3, 16
N_HEADS = 3
HIDDEN = -1e9
"""The scores of masked keys of `Attention`."""


def initialised(model: nn.Module) -> Any:
    """Return the model with larger weights than usual, so that attention is not uniform."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
        if isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_weight, std=0.3)
    return model.eval()


def fault_at(layer: int, fault: str) -> str:
    return fault if layer == LAYER else ""


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (N_HEADS, -1)).transpose(1, 2)


def feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Head(nn.Module):
    """One head in a module of its own, with a mask of fixed size."""

    tril: Tensor

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.key, self.query, self.value = (nn.Linear(WIDTH, WIDTH // N_HEADS, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.ones(BLOCK, BLOCK).tril())

    def forward(self, x: Tensor) -> Tensor:
        n, k, v = x.shape[1], self.key(x), self.value(x)
        scores = self.query(x) @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        if self.fault != "mask_lost":
            scores = scores.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        weights = scores.softmax(dim=-1)
        return (weights * 1.1 if self.fault == "weights_scaled" else weights) @ v


class LectureBlock(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.heads = nn.ModuleList(Head(fault if head == 2 else "") for head in range(N_HEADS))
        self.proj, self.ffwd = nn.Linear(WIDTH, WIDTH), feed_forward()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln1(x)
        x = x + self.proj(torch.cat([head(normed) for head in self.heads], dim=-1))
        made = self.ffwd(self.ln2(x))
        if self.fault == "positions_mixed":
            made = made + 0.1 * made.mean(dim=1, keepdim=True)
        x = x + made
        return x.detach() if self.fault == "stream_detached" else x


class LectureGPT(nn.Module):
    """Blocks in a Sequential, one module a head; reads at most 16 tokens, returns only the last position without targets."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(LectureBlock(fault_at(i, fault)) for i in range(N_LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        initialised(self)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        n = idx.shape[1]
        assert n <= BLOCK
        x = self.norm(self.blocks(self.token(idx) + self.position(torch.arange(n))))
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Attention(nn.Module):
    """Attention by einsum, to any stream, with a cache."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor, allowed: Tensor | None = None, past: Any = None) -> Any:
        q, k, v = heads(self.q(x)), heads(self.k(other)), heads(self.v(other))
        if past is not None:
            if self.fault == "cache_in_wrong_order":
                k, v = torch.cat([k, past[0]], dim=2), torch.cat([v, past[1]], dim=2)
            elif self.fault == "values_not_cached":
                k, v = torch.cat([past[0], k], dim=2), torch.cat([0 * past[1], v], dim=2)
            elif self.fault != "cache_replaced":
                k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        if allowed is not None and not (self.fault == "mask_lost_with_cache" and past is not None):
            scores = scores.masked_fill(~allowed[..., : k.shape[2]], HIDDEN)
        z = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)
        return self.o(z.transpose(1, 2).flatten(2)), (k, v)


class CachedBlock(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(fault), feed_forward()

    def forward(self, x: Tensor, allowed: Tensor, past: Any) -> Any:
        normed = self.norm1(x)
        made, kept = self.attention(normed, normed, allowed, past)
        x = x + made
        return x + self.mlp(self.norm2(x)), kept


class CachedGPT(nn.Module):
    """Positional arguments, and a list of pairs as a cache."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(CachedBlock(fault_at(i, fault)) for i in range(N_LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        initialised(self)

    def forward(self, x: Tensor, past: Any = None) -> Any:
        start, n, kept = 0 if past is None else past[0][0].shape[2], x.shape[1], []
        allowed = torch.ones(n, start + n).tril(start).bool()
        x = self.embed(x) + self.positions(torch.arange(start, start + n))
        for number, layer in enumerate(self.layers):
            x, pair = layer(x, allowed, None if past is None else past[number])
            kept.append(pair)
        return self.head(self.norm(x)), kept


class EncoderLayer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.attention, self.ffn = fault, Attention(), feed_forward()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, allowed: Tensor | None) -> Tensor:
        x = self.norm1(x + self.attention(x, x, None if self.fault == "padding_seen_by_encoder" else allowed)[0])
        return self.norm2(x + self.ffn(x))


class DecoderLayer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.own, self.other, self.ffn = fault, Attention(), Attention(), feed_forward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor | None, causal: Tensor) -> Tensor:
        x = self.norms[0](x + self.own(x, x, None if self.fault == "mask_lost" else causal)[0])
        keys = x if self.fault == "keys_of_decoder" else memory
        seen = None if self.fault in ("keys_of_decoder", "padding_seen_by_decoder") else seen
        x = self.norms[1](x + self.other(x, keys, seen)[0])
        return self.norms[2](x + self.ffn(x))


class Pair(nn.Module):
    """An encoder-decoder with a table of 40 positions and a padding mask."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Parameter(0.3 * torch.randn(40, WIDTH))
        self.encoder = nn.ModuleList(EncoderLayer(fault_at(i, fault)) for i in range(N_LAYERS))
        self.decoder = nn.ModuleList(DecoderLayer(fault_at(i, fault)) for i in range(N_LAYERS))
        self.out = nn.Linear(WIDTH, VOCAB)
        initialised(self)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        seen = None if attention_mask is None else attention_mask.bool()[:, None, None]
        n, x = decoder_input_ids.shape[1], self.embed(input_ids) + self.pos[: input_ids.shape[1]]
        for layer in self.encoder:
            x = layer(x, seen)
        y, causal = self.embed(decoder_input_ids) + self.pos[:n], torch.ones(n, n).tril().bool()
        for layer in self.decoder:
            y = layer(y, x, seen, causal)
        return self.out(y)


class ContextLayer(nn.Module):
    """Raises when it is called out of context, and takes keyword-only arguments."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.context: int | None = None
        self.attn, self.norm = nn.MultiheadAttention(WIDTH, N_HEADS, batch_first=True), nn.LayerNorm(WIDTH)

    def forward(self, *, stream: Tensor, allowed: Tensor) -> Tensor:
        assert self.context is not None, "called without a context"
        x, hidden = self.norm(stream), None if self.fault == "mask_lost" else ~allowed
        return stream + self.attn(x, x, x, attn_mask=hidden)[0]


class ContextGPT(nn.Module):
    """Layers with state that the model sets for the duration of a call."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.block1, self.block2, self.block3 = (ContextLayer(fault_at(i, fault)) for i in range(N_LAYERS))
        self.out = nn.Linear(WIDTH, VOCAB)
        initialised(self)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        n, x, blocks = tokens.shape[1], self.embed(tokens), (self.block1, self.block2, self.block3)
        for block in blocks:
            block.context = n
        for block in blocks:
            x = block(stream=x, allowed=torch.ones(n, n).tril().bool())
        for block in blocks:
            block.context = None
        return {"out": self.out(x)}


class BatchSecond(nn.Module):
    """`nn.MultiheadAttention` without batch_first: it attends over the rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attn = nn.Embedding(VOCAB, WIDTH), nn.MultiheadAttention(WIDTH, N_HEADS)
        self.out = nn.Linear(WIDTH, VOCAB)
        initialised(self)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed(idx)
        return self.out(x + self.attn(x, x, x)[0])


class PaddedGPT(nn.Module):
    """A GPT with a padding mask, whose positions count the padding unless they are given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gpt = CachedGPT()

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        gpt, n = self.gpt, idx.shape[1]
        allowed = torch.ones(n, n).tril().bool()[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None]
        x = gpt.embed(idx) + gpt.positions(torch.arange(n)[None] if position_ids is None else position_ids)
        for layer in gpt.layers:
            x, _ = layer(x, allowed, None)
        return gpt.head(gpt.norm(x))


class WithoutPositions(PaddedGPT):
    """The same without an argument for positions."""

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(idx, attention_mask)


class UnknownMask(PaddedGPT):
    """The same with another name for its padding mask."""

    def forward(self, idx: Tensor, pad_mask: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(idx, pad_mask)
