"""The keys that a few queries may attend to, and those that the mask hides from one of them."""

from __future__ import annotations

import pytest
import torch

from xformer.adapters.attention import Terms
from xformer.adapters.mask_rows import MaskRows, Span

N = 40
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
EMPTY = CAUSAL.clone()
EMPTY[21] = False


@pytest.mark.parametrize(
    ("mask", "keys", "hidden"),
    [
        (CAUSAL, (0, 24), (21, 24)),  # the first query reads keys 0 to 20, the last one 0 to 23
        (CAUSAL.triu(-10), (8, 24), (0, 16)),  # a window hides the first keys of the block too
        (torch.ones(N, N).bool(), (0, 40), (40, 40)),
        (EMPTY, (0, 24), (0, 24)),  # a query without a key
        (CAUSAL & (torch.arange(N) != 3), (0, 24), (0, 24)),  # a hole
        (torch.zeros(N, N).bool(), (0, 8), (0, 8)),
    ],
)
def test_a_span_has_whole_blocks_of_keys_and_those_that_are_hidden(
    mask: torch.Tensor, keys: tuple[int, int], hidden: tuple[int, int]
) -> None:
    span = Span.of(MaskRows.of(Terms(1.0, allowed=mask[None, None]), 20, 24, N, torch.device("cpu")), 20, 8)
    assert (span.keys.start, span.keys.stop) == keys
    assert span.rows.allowed.shape == (1, 4, keys[1] - keys[0])
    is_hidden = ~span.rows.allowed[0].all(0)
    assert not is_hidden[: span.hidden.start].any()
    assert not is_hidden[span.hidden.stop :].any()
    assert (span.hidden.start, span.hidden.stop) == hidden
    assert torch.equal(span.n_permitted, mask[None, 20:24].sum(-1))
