"""What a transformer's parameters do to its rows, for many models at once, with gradients written out.

Rows x are [model · batch, pos, …], model by model. Results are no views, so that what follows may be done in place; large ones
are made a few models at a time, while they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

NARROW = 16
"""Keys: PyTorch's softmax takes its vectors along a row, and where a row fills none of them it is six times as slow."""
IN_CACHE = 1 << 18
"""Numbers that stay in a processor's cache from one operation to the next: 1 MB."""


class Linear(torch.autograd.Function):
    """yᵐ = xᵐ Wᵐᵀ + bᵐ, W [model, out, in]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x.new_empty(*x.shape[:-1], weight.shape[1])
        _affine(_by_model(x, weight), weight, bias, _by_model(y, weight))
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = _by_model(gradients[0], weight)  # [model, cell, out]
        of_weight = torch.bmm(gradient.mT, _by_model(x, weight))
        return torch.bmm(gradient, weight).view(x.shape), of_weight, gradient.sum(dim=1) if ctx.has_bias else None


class Projections(torch.autograd.Function):
    """q, k and v, or k and v, of `sizes` features each: products of their own, as each of them is read by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        found = tuple(x.new_empty(*x.shape[:-1], size) for size in sizes)
        biases = [None] * len(sizes) if bias is None else bias.split(sizes, dim=1)
        for y, w, b in zip(found, weight.split(sizes, dim=1), biases, strict=True):
            _affine(_by_model(x, weight), w, b, _by_model(y, weight))
        ctx.save_for_backward(x, weight)
        ctx.sizes, ctx.has_bias = sizes, bias is not None
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, of_weight = _by_model(x, weight), torch.empty(weight.shape, **_kind(x))
        of_x, each = torch.empty_like(rows), [_by_model(one, weight) for one in gradients]
        parts = zip(each, weight.split(ctx.sizes, dim=1), of_weight.split(ctx.sizes, dim=1), strict=True)
        for number, (gradient, w, of_w) in enumerate(parts):
            torch.baddbmm(of_x, gradient, w, beta=min(number, 1), out=of_x)  # beta 0: what is there does not count
            of_w.copy_(torch.bmm(gradient.mT, rows))
        of_bias = torch.cat([gradient.sum(dim=1) for gradient in each], dim=1) if ctx.has_bias else None
        return of_x.view(x.shape), of_weight, of_bias, None


class Kernel(torch.autograd.Function):
    """z = softmax(q kᵀ · scale + added) v, which knows nothing of models: `added` masks, and holds what positions add.

    Heads are multiplied one by one, each as it lies among the others: put together first, they would have to be copied.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> Tensor:
        n_batch, n_heads, n_query, n_key = *q.shape[:3], k.shape[2]
        scores = q.new_empty(n_heads, n_batch, n_query, n_key)
        for head, s in enumerate(scores):
            plus = s if added is None else added.expand(n_batch, n_heads, n_query, n_key)[:, head]
            torch.baddbmm(plus, q[:, head], k[:, head].mT, beta=0 if added is None else 1, alpha=scale, out=s)
        pattern = _softmax(scores)
        ctx.save_for_backward(q, k, v, pattern)
        ctx.scale, ctx.shape = scale, None if added is None else added.shape
        return _heads(q, v.shape[-1], lambda head, z: torch.bmm(pattern[head], v[:, head], out=z))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, pattern = ctx.saved_tensors
        [gradient], scale = gradients, ctx.scale
        of_v = _heads(v, v.shape[-1], lambda head, out: torch.bmm(pattern[head].mT, gradient[:, head], out=out))
        of_pattern = torch.empty_like(pattern)
        for head, out in enumerate(of_pattern):
            torch.bmm(gradient[:, head], v[:, head].mT, out=out)
        of_scores = _softmax_backward(of_pattern, pattern)

        def scaled(a: Tensor, b: Tensor, out: Tensor) -> None:
            torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)

        of_q = _heads(q, q.shape[-1], lambda head, out: scaled(of_scores[head], k[:, head], out))
        of_k = _heads(k, k.shape[-1], lambda head, out: scaled(of_scores[head].mT, q[:, head], out))
        of_added = of_scores.transpose(0, 1).sum_to_size(ctx.shape) if ctx.needs_input_grad[3] else None
        return of_q, of_k, of_v, of_added, None


class FeedForward(torch.autograd.Function):
    """yᵐ = ReLU(xᵐ W₁ᵐᵀ + b₁ᵐ) W₂ᵐᵀ + b₂ᵐ"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
        y, rows = torch.empty_like(x, memory_format=torch.contiguous_format), _by_model(x, w1)
        hidden = x.new_empty(*rows.shape[:2], w1.shape[1])  # [model, cell, d_ff]
        out = _by_model(y, w1)
        for some in _groups(hidden):
            _affine(rows[some], w1[some], None if b1 is None else b1[some], hidden[some])
            hidden[some].relu_()
            _affine(hidden[some], w2[some], None if b2 is None else b2[some], out[some])
        ctx.save_for_backward(x, hidden, w1, w2)
        ctx.has_bias = b1 is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, w1, w2 = ctx.saved_tensors
        rows, gradient = _by_model(x, w1), _by_model(gradients[0], w1)  # [model, cell, d_model]
        of_x, of_w1, of_w2 = (
            torch.empty_like(rows),
            torch.empty(w1.shape, **_kind(x)),
            torch.empty(w2.shape, **_kind(x)),
        )
        of_b1 = x.new_empty(w1.shape[:2])
        for some in _groups(hidden):
            back = torch.bmm(gradient[some], w2[some])  # [some, cell, d_ff]
            torch.ops.aten.threshold_backward.grad_input(back, hidden[some], 0, grad_input=back)
            torch.bmm(gradient[some].mT, hidden[some], out=of_w2[some])
            torch.bmm(back.mT, rows[some], out=of_w1[some])
            torch.sum(back, dim=1, out=of_b1[some])
            torch.bmm(back, w1[some], out=of_x[some])
        if not ctx.has_bias:
            return of_x.view(x.shape), of_w1, None, of_w2, None
        return of_x.view(x.shape), of_w1, of_b1, of_w2, gradient.sum(dim=1)


class LayerNorm(torch.autograd.Function):
    """yᵐ = γᵐ (xᵐ − mean) / √(var + ε) + βᵐ"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        shares = x.new_full(x.shape[-1:], 1 / x.shape[-1])  # a product with them is the fastest mean along rows
        mean = (x @ shares)[..., None]  # [model · batch, pos, 1]
        normal = x - mean
        scale = ((normal * normal) @ shares).add_(eps).rsqrt_()[..., None]
        normal *= scale
        ctx.save_for_backward(x, normal, mean, scale, gain)
        return torch.addcmul(shift[:, None], _by_model(normal, gain), gain[:, None]).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, normal, mean, scale, gain = ctx.saved_tensors
        gradient = _by_model(gradients[0], gain)  # [model, cell, d_model]
        of_normal = (gradient * gain[:, None]).view(x.shape)
        of_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            of_normal, x, x.shape[-1:], mean, scale, None, None, [True, False, False]
        )
        of_gain = _by_model(normal, gain).mul_(gradient).sum(dim=1)  # in place: nobody reads it again
        return of_x, of_gain, gradient.sum(dim=1), None


def _softmax(scores: Tensor) -> Tensor:
    """Along rows; `scores` may be overwritten."""
    if scores.is_cuda or scores.shape[-1] >= NARROW:
        return scores.softmax(dim=-1)
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return weights.div_((weights @ weights.new_ones(weights.shape[-1]))[..., None])


def _softmax_backward(gradient: Tensor, pattern: Tensor) -> Tensor:
    """p (g − Σ p g)"""
    if pattern.is_cuda or pattern.shape[-1] >= NARROW:
        return torch.ops.aten._softmax_backward_data(gradient, pattern, -1, pattern.dtype)
    shares = gradient * pattern
    sums = (shares @ shares.new_ones(shares.shape[-1]))[..., None]
    return shares.addcmul_(pattern, sums, value=-1)


def _heads(like: Tensor, width: int, multiply: Callable[[int, Tensor], object]) -> Tensor:
    """[batch, head, pos, width], each head as `multiply` writes it."""
    found = like.new_empty(like.shape[1], like.shape[0], like.shape[2], width)
    for head, out in enumerate(found):
        multiply(head, out)
    return found.transpose(0, 1)


def _by_model(rows: Tensor, weight: Tensor) -> Tensor:
    """[model · batch, pos, …] as [model, cell, …]"""
    return rows.reshape(len(weight), -1, rows.shape[-1])


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> None:
    torch.bmm(x, weight.mT, out=y)
    if bias is not None:
        y += bias[:, None]


def _groups(hidden: Tensor) -> Iterator[slice]:
    """Models whose share of `hidden` fits into a processor's cache; a GPU takes all at once."""
    n_models, n_cells, width = hidden.shape
    some = n_models if hidden.is_cuda else max(1, IN_CACHE // (n_cells * width))
    return (slice(first, first + some) for first in range(0, n_models, some))


def _kind(like: Tensor) -> dict[str, Any]:
    return {"dtype": like.dtype, "device": like.device}
