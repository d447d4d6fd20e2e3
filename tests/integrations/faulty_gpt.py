"""A small GPT in plain PyTorch with an optional fault, for the tests and the benchmark of `AttentionHealth`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """A typical implementation of causal attention, with an optional fault."""

    def __init__(self, d_model: int, n_heads: int, fault: str = "") -> None:
        super().__init__()
        self.n_heads, self.fault = n_heads, fault
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if fault == "identical heads":
            width = d_model // n_heads
            for layer in (self.query, self.key, self.value):
                layer.weight.data[width : 2 * width] = layer.weight.data[:width]
            self.out.weight.data[:, width : 2 * width] = self.out.weight.data[:, :width]

    def forward(self, x: Tensor, pads: Tensor | None = None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )  # [batch, head, pos, d_head]
        n = x.shape[1]
        if self.fault == "frozen K":
            k = k.detach()
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(1 if self.fault == "leaking mask" else 0)
        if pads is not None and self.fault != "padding seen":
            allowed = allowed & ~pads[:, None, None, :] | torch.eye(n, dtype=torch.bool, device=x.device)
        scale = 1.0 if self.fault == "no 1/√d" else q.shape[-1] ** -0.5
        if self.fault == "float16 overflow":
            scores = (q.half() @ k.half().mT * scale).float().masked_fill(~allowed, -math.inf)
            return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
        return self.out(z.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm block, or a post-norm block, which needs a warm-up (Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(self, d_model: int, n_heads: int, fault: str, is_post: bool, act: type[nn.Module]) -> None:
        super().__init__()
        self.is_post = is_post
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_heads, fault)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), act(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor, pads: Tensor | None = None) -> Tensor:
        if self.is_post:
            x = self.norm1(x + self.attention(x, pads))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x), pads)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT in plain PyTorch with an optional fault in its last layer."""

    def __init__(
        self, vocab: int, d_model: int = 32, n_layers: int = 2, n_heads: int = 4, max_len: int = 64, *, fault: str = "",
        is_post: bool = False, std: float = 0.0, act: type[nn.Module] = nn.GELU,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, d_model), nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, fault if layer == n_layers - 1 else "", is_post, act) for layer in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab, bias=False)
        for part in self.modules():
            if std and isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=std)

    def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, pads)
        return self.head(self.norm(x))
