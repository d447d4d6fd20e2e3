"""Gradients written out by hand are those that autograd finds for the plain equation, in sizes that no two axes share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xformer.layers.norm import layer_norm
from xformer.training.stacked_functions import Kernel, LayerNorm

KIND = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}


def assert_same(mine: Tensor, plain: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(mine, plain)
    gradient = torch.randn(plain.shape, **KIND)
    of_mine, of_plain = (torch.autograd.grad(one, inputs, gradient) for one in (mine, plain))
    for one, other in zip(of_mine, of_plain, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [None, (3, 1, 5), (1, 2, 5), (1, 1, 5)])
@pytest.mark.parametrize("learnt", [True, False], ids=["learnt", "fixed"])
@pytest.mark.parametrize("n_key", [7, 17])  # on either side of where rows are narrow
def test_attention(shape: tuple[int, ...] | None, learnt: bool, n_key: int) -> None:
    q, k = (torch.randn(3, n, 2, 11, **KIND).transpose(1, 2).requires_grad_() for n in (5, n_key))
    v = torch.randn(3, n_key, 2, 13, **KIND).transpose(1, 2).requires_grad_()
    added = None if shape is None else torch.randn(*shape, n_key, **KIND).requires_grad_(learnt)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.3 + (0 if added is None else added)
    plain = torch.einsum("bhqk,bhkd->bhqd", scores.exp() / scores.exp().sum(dim=-1, keepdim=True), v)
    inputs = [q, k, v] if added is None or not learnt else [q, k, v, added]
    assert_same(Kernel.apply(q, k, v, added, 0.3), plain, inputs)


def test_layer_norm() -> None:
    x = (3 + torch.randn(2 * 3, 5, 7, **KIND)).requires_grad_()  # two models of three rows
    gain, shift = (torch.randn(2, 7, **KIND).requires_grad_() for _ in range(2))
    plain = torch.cat([layer_norm(x[3 * m : 3 * m + 3], gain[m], shift[m], 1e-5) for m in range(2)])
    assert_same(LayerNorm.apply(x, gain, shift, 1e-5), plain, [x, gain, shift])


def test_scores_beyond_what_exp_can_hold() -> None:
    q, k, v = torch.full((1, 1, 3, 5), 1e3), torch.eye(5)[None, None, :3], torch.arange(15.0).view(1, 1, 3, 5)
    hidden = torch.tensor([0.0, 0.0, -1.0]).mul(torch.finfo(torch.float32).max)
    z = Kernel.apply(q, k, v, hidden.expand(1, 1, 3, 3), 1.0)
    torch.testing.assert_close(z, v[:, :, :2].mean(dim=2, keepdim=True).expand(1, 1, 3, 5))
