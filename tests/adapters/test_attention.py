"""The step-by-step attention used for all families, compared with PyTorch's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xformer.adapters.attention import Terms, attend
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
