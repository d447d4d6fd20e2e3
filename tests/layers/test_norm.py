"""Layer normalisation equals its equation and PyTorch's module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.layers.reference import assert_close, assert_same, named_norm, random, randomise
from xformer.layers.norm import LayerNorm, layer_norm

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_the_module_and_the_equation_equal_pytorchs(eps: float) -> None:
    norm = randomise(LayerNorm(13, eps))
    x = random(2, 11, 13)
    expected = torch.func.functional_call(nn.LayerNorm(13, eps=eps), named_norm(norm), (x,), strict=True)
    assert_same(norm(x), expected, [x, *norm.parameters()])
    assert_same(layer_norm(x, norm.weight, norm.bias, eps), expected, [x, *norm.parameters()])


def test_the_result_has_mean_zero_and_variance_one() -> None:
    normal = LayerNorm(13, eps=1e-300)(random(2, 11, 13))
    assert_close(normal.mean(dim=-1), torch.zeros(2, 11))
    assert_close(normal.var(dim=-1, unbiased=False), torch.ones(2, 11))
