"""The tensors that operations keep: those of an attention in any layout, and those that are changed in place later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import xformer
from tests.program.test_plan import READ, made
from xformer.adapters.attention import for_each_head

FUSED = {name for name in READ if "sdpa" in name or name.startswith(("nn.", "encoder layer", "decoder layer", "flex"))}
BIASED = {"relative bias", "relative keys", "relative shift", "alibi", "distances", "two products"}
"""Styles whose scores are more than the product of queries and keys."""


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", [name for name in READ if name not in FUSED])
def test_queries_and_keys_give_the_scores_and_values_give_z(name: str, batch: int) -> None:
    animal = READ[name]
    for one in xformer.operations(made(animal), animal.inputs(batch, 5)).attentions:
        q, k, v, scores, pattern = one.q, one.k, one.v, one.scores, one.pattern
        assert q is not None
        assert k is not None
        assert v is not None
        assert scores is not None
        assert pattern is not None
        tolerance = 2e-2 if name == "autocast" else 1e-5
        torch.testing.assert_close(pattern @ for_each_head(v, pattern.shape[1]), one.z, rtol=0, atol=tolerance)
        product = q @ for_each_head(k, q.shape[1]).mT
        scores = scores[..., : product.shape[-1]]  # without a sink
        pair = torch.stack([product[scores > -1e3], scores[scores > -1e3]]).float()
        assert name in BIASED or torch.corrcoef(pair)[0, 1] > 0.9999


def test_a_kept_tensor_is_not_changed_by_a_later_operation() -> None:
    module, x = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True)), torch.randn(2, 4, 3)
    linear, relu = xformer.operations(module, x)
    torch.testing.assert_close(linear.result.tensor, module[0](x).detach())
    torch.testing.assert_close(relu.result.tensor, module(x).detach())


@pytest.mark.parametrize("name", ["usual", "softmax over columns", "softmax of rows"])
def test_the_output_of_a_softmax_has_the_axes_of_its_scores(name: str) -> None:
    animal = READ[name]
    (one,) = xformer.operations(made(animal), animal.inputs(3, 5)).attentions
    assert one.scores is not None
    torch.testing.assert_close(one.softmax, one.scores.softmax(-1))
