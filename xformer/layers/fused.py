"""Self-attention with its gradient derived by hand, for training small models on a CPU; a test holds it equal to autograd.

    Q = X W_Q / √d_head,   K = X W_K,   V = X W_V          each head's own matrices, heads first: [head, pos, width]
    P = softmax(Q Kᵀ + mask)                               (Vaswani et al. 2017, equation 1)
    Z = P V
    Y = Σₕ Zₕ W_O,ₕ

and backwards, with dA for ∂loss/∂A:

    dZ = dY W_Oᵀ                    dW_O = Zᵀ dY
    dV = Pᵀ dZ                      dP   = dZ Vᵀ
    dS = P ∘ (dP − δ)               δᵢ   = Σⱼ Pᵢⱼ dPᵢⱼ = Σ dZᵢ ∘ Zᵢ              (Dao et al. 2022, arXiv:2205.14135, B.2)
    dQ = dS K                       dK   = dSᵀ Q
    dX = dQ W_Qᵀ / √d_head + dK W_Kᵀ + dV W_Vᵀ

With sequences of a dozen tokens the products are cheap, and moving the heads about between them is not. So heads come first
all the way: one batched product makes Q, K and V of all heads where the next product reads them, and nothing is copied.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

LONGEST = 32
"""Up to this many tokens per row it pays; with more, the arithmetic dominates, and PyTorch's kernel is as good."""


def pays_for(x: Float[Tensor, "batch pos d_model"]) -> bool:
    """Whether a gradient may be wanted, on a CPU, of sequences that are short."""
    return (
        torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.shape[1] <= LONGEST
        and not torch.is_autocast_enabled("cpu")
    )


def self_attention(
    x: Float[Tensor, "batch pos d_model"],
    weight_in: Float[Tensor, "three_heads_width d_model"],
    bias_in: Float[Tensor, " three_heads_width"] | None,
    weight_out: Float[Tensor, "d_model heads_width"],
    bias_out: Float[Tensor, " d_model"] | None,
    *,
    n_heads: int,
    mask: Float[Tensor, "#batch #head #query pos"] | None,
    empty_rows: Bool[Tensor, "#batch #head #query 1"] | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """Multi-head self-attention; queries, keys and values must all be of the same width.

    `mask` is added to the scores (0 or −inf); a query that may look at nothing is named in `empty_rows`, and looks at
    nothing. The gradient cannot be differentiated again.
    """
    return SelfAttention.apply(x, weight_in, bias_in, weight_out, bias_out, n_heads, mask, empty_rows)  # pyright: ignore[reportReturnType]


class SelfAttention(torch.autograd.Function):
    """The equations above, forwards and backwards."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_in: Tensor,
        bias_in: Tensor | None,
        weight_out: Tensor,
        bias_out: Tensor | None,
        n_heads: int,
        mask: Tensor | None,
        empty_rows: Tensor | None,
    ) -> Tensor:
        batch, n, d_model = x.shape
        rows = x.reshape(batch * n, d_model)  # [batch·pos, d_model]
        W_in = weight_in.view(3 * n_heads, -1, d_model)  # [3·head, width, d_model]
        W_out = weight_out.view(d_model, n_heads, -1).permute(1, 2, 0)  # [head, width, d_model]
        width = W_in.shape[1]

        each = rows.expand(3 * n_heads, -1, -1)  # the same rows for each head's q, k and v
        qkv = torch.bmm(each, W_in.mT)  # [3·head, batch·pos, width]
        if bias_in is not None:
            qkv += bias_in.view(3 * n_heads, 1, width)
        q, k, v = qkv.view(3, n_heads * batch, n, width)  # each [head·batch, pos, width]
        q /= math.sqrt(width)
        scores = torch.bmm(q, k.mT).view(n_heads, batch, n, n)  # [head, batch, query, key]
        if mask is not None:
            scores += mask.transpose(0, 1)
        pattern = scores.softmax(dim=-1)
        if empty_rows is not None:
            pattern.masked_fill_(empty_rows.transpose(0, 1), 0.0)
        pattern = pattern.view(n_heads * batch, n, n)
        z = torch.bmm(pattern, v).view(n_heads, batch * n, width)
        y = torch.addbmm(rows, z, W_out, beta=0)  # Σₕ Zₕ W_O,ₕ: [batch·pos, d_model]
        if bias_out is not None:
            y += bias_out

        ctx.save_for_backward(rows, W_in, W_out, qkv, pattern, z)
        ctx.biases = bias_in is not None, bias_out is not None
        return y.view(batch, n, d_model)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, W_in, W_out, qkv, pattern, z = ctx.saved_tensors
        n_heads, width, d_model = W_out.shape
        batch, n, _ = grad.shape
        dy = grad.reshape(batch * n, d_model)  # [batch·pos, d_model]

        each = dy.expand(n_heads, -1, -1)
        dW_out = torch.bmm(each.mT, z)  # [head, d_model, width]
        dz = torch.bmm(each, W_out.mT)  # [head, batch·pos, width]
        delta = (dz * z).sum(dim=-1).view(n_heads * batch, n, 1)  # [head·batch, query, 1]
        dz = dz.view(n_heads * batch, n, width)

        q, k, v = qkv.view(3, n_heads * batch, n, width)
        dqkv = torch.empty_like(qkv)  # each product goes straight to its place in it
        dq, dk, dv = dqkv.view(3, n_heads * batch, n, width)
        ds = torch.bmm(dz, v.mT).sub_(delta).mul_(pattern)  # [head·batch, query, key]
        torch.bmm(ds, k, out=dq)
        torch.bmm(ds.mT, q, out=dk)
        torch.bmm(pattern.mT, dz, out=dv)
        dq /= math.sqrt(width)

        dx = torch.addbmm(dy, dqkv, W_in, beta=0)  # Σ over q, k and v of all heads: [batch·pos, d_model]
        dW_in = torch.bmm(dqkv.mT, rows.expand(3 * n_heads, -1, -1))  # [3·head, width, d_model]
        has_bias_in, has_bias_out = ctx.biases
        return (
            dx.view_as(grad),
            dW_in.view(-1, d_model),
            dqkv.sum(dim=1).flatten() if has_bias_in else None,
            dW_out.transpose(0, 1).reshape(d_model, -1),
            dy.sum(dim=0) if has_bias_out else None,
            None,
            None,
            None,
        )
