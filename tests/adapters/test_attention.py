"""The step-by-step attention used for all families, compared with PyTorch's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xformer.adapters.attention import Terms, attend, permitted
from xformer.tape import SILENT


def test_a_query_without_an_allowed_key_has_the_pattern_of_the_additive_mask() -> None:
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 5, width, generator=draw, dtype=torch.float64) for width in (7, 7, 11))
    least = torch.finfo(torch.float64).min
    added = torch.zeros(2, 1, 5, 5, dtype=torch.float64).masked_fill(~torch.ones(5, 5).tril().bool(), least)
    added[1, :, :, :2] = least  # left padding: no key is left for the first two queries of the second row
    z, pattern = attend(q, k, v, Terms(scale=0.3, added=added), SILENT)
    torch.testing.assert_close(pattern, (q @ k.mT * 0.3 + added).softmax(dim=-1))
    torch.testing.assert_close(z, F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=0.3))
    assert pattern[1, :, :2].sum(dim=-1).allclose(torch.ones(3, 2, dtype=torch.float64))


def test_a_key_is_forbidden_below_a_gap_and_not_by_distance() -> None:
    draw = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(4, 300, 300, generator=draw)
    causal = torch.ones(300, 300).tril().bool().expand_as(scores)
    for low in (-100.0, -1e3, -1e4, torch.finfo(torch.float32).min, -torch.inf):
        assert torch.equal(permitted(scores.masked_fill(~causal, low)), causal), low
    assert torch.equal(permitted(scores - 1e4 * (~causal).float()), causal)
    assert torch.equal(permitted(scores.masked_fill(~causal, -1e3).mT, axis=-2), causal.mT)
    assert permitted(scores).all()
    assert permitted(scores.masked_fill(~causal, torch.inf)).all()  # a mask with the wrong sign

    distance = (torch.arange(300)[:, None] - torch.arange(300)).clamp(min=0)
    biased = (
        scores - distance * torch.tensor([0.5, 0.25, 1.0, 2.0])[:, None, None]
    )  # weights of 0 beyond 40 to 160 keys
    assert torch.equal(permitted(biased.masked_fill(~causal, -torch.inf)), causal)
    assert not permitted(torch.full((1, 2, 3), -1e4)).any()  # a query without any permitted key
