"""Sums over a pattern, computed in blocks of queries, equal those of the whole pattern."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.adapters.attention import Terms, attend
from xformer.adapters.attention_sums import AttentionSums, Kept, attend_in_blocks, attend_with_sums, sums_of_pattern
from xformer.adapters.mask_rows import LazyMask
from xformer.errors import InputError
from xformer.tape import SILENT

N, M, D = 257, 211, 13
CAUSAL = torch.ones(1, 1, N, N, dtype=torch.bool).tril()
VALID = torch.arange(N) >= 37
SCATTERED = CAUSAL & (torch.rand(N, N, generator=torch.Generator().manual_seed(2)) < 0.7) | torch.eye(N).bool()
HEADS = torch.cat([CAUSAL.triu(-9 * head) for head in range(6)], dim=1)  # each head has a window of its own
MASKS = {
    "scattered": SCATTERED,
    "heads": HEADS,
    "later": CAUSAL.mT,
    "causal": CAUSAL,
    "window": CAUSAL.triu(-16),
    "left": CAUSAL & VALID,
    "free": torch.ones(1, 1, N, M).bool(),
}


def whole(pattern: Tensor, counted: Tensor, groups: Tensor, block: int) -> dict[str, Tensor]:
    """Every sum, from the whole pattern [head, query, key] in float64."""
    p = pattern.double()
    kept = p * counted[None, :, None]
    n, m = p.shape[1:]
    blocks = F.pad(kept, (0, -m % block, 0, -n % block)).unflatten(2, (-1, block)).unflatten(1, (-1, block))
    one_hot = F.one_hot(groups).double()
    found = {
        "entropy": torch.special.entr(p).sum(-1),
        "largest": p.amax(-1),
        "received": kept.sum(1),
        "by_offset": torch.stack([kept.diagonal(at, 1, 2).sum(-1) for at in range(1 - n, m)], dim=1),
        "block_sum": blocks.sum((2, 4)),
        "block_max": blocks.amax((2, 4)),
    }
    return found | ({"between": torch.einsum("hqk,qa,kb->hab", kept, one_hot, one_hot)} if n == m else {})


def check(sums: AttentionSums, wanted: dict[str, Tensor]) -> None:
    for name, value in wanted.items():
        found = getattr(sums, name)
        assert found.shape == value.shape, name
        # Sums of up to 257² float32 numbers below 1: their rounding grows with the sum.
        assert torch.allclose(found.double(), value, rtol=3e-6, atol=1e-5), (name, (found - value).abs().max())


def ends_of(row: Tensor) -> list[int]:
    """The first permitted key of a query, and the one after the last; 0, 0 if there is none."""
    at = row.nonzero()[:, 0].tolist()
    return [at[0], at[-1] + 1] if at else [0, 0]


def inputs(n_key: int, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_key + n_groups)
    q, k, v = (
        torch.randn(1, heads, n, width, generator=generator) * 2
        for heads, n, width in ((6, N, D), (n_groups, n_key, D), (n_groups, n_key, D + 2))
    )
    return q, k, v


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize(
    ("mask", "n_groups", "more"),
    [
        ("causal", 2, {}),
        ("window", 1, {}),
        ("left", 3, {}),
        ("free", 6, {}),
        ("scattered", 2, {}),
        ("heads", 3, {}),
        ("later", 2, {}),
        ("causal", 2, {"sinks": torch.linspace(-3, 4, 6)}),
        ("causal", 2, {"sinks": torch.full((6,), 60.0)}),
        ("window", 2, {"softcap": 5.0}),
        ("causal", 6, {"bias": torch.randn(1, 6, N, N, generator=torch.Generator().manual_seed(0)), "softcap": 3.0}),
    ],
)  # fmt: skip
def test_sums_equal_those_of_the_whole_pattern(mask: str, n_groups: int, more: dict, block: int) -> None:
    allowed = MASKS[mask]
    q, k, v = inputs(allowed.shape[-1], n_groups)
    terms = Terms(D**-0.5, allowed=allowed, is_safe=True, **more)
    z, pattern = attend(q, k, v, terms, SILENT)
    groups, valid = (torch.arange(N) > 100).long() + (torch.arange(N) > 150).long(), VALID if mask == "left" else None
    counted = torch.ones(N, dtype=torch.bool) if valid is None else valid
    found, sums = attend_with_sums(q[0], k[0], v[0], terms, groups=groups, valid=valid, block=block)
    check(sums, whole(pattern[0], counted, groups, block))
    assert torch.allclose(found, z[0], rtol=0, atol=1e-5)
    assert torch.allclose(attend_in_blocks(q, k, v, terms), z, rtol=0, atol=1e-5)
    assert torch.equal(sums.largest_key[:, counted], pattern[0].argmax(-1)[:, counted])
    assert torch.equal(sums.n_permitted, allowed[0].sum(-1))
    first = int(counted.nonzero()[0]) if mask != "free" else 0
    assert torch.allclose(sums.first, pattern[0, :, :, first], rtol=0, atol=1e-6)
    rows, keys = slice(7, 99), slice(3, 120)
    part = Kept(q[0], k[0], terms).weights(sums, rows, keys)
    assert torch.allclose(part, pattern[0, :, rows, keys], rtol=0, atol=2e-6)
    assert torch.equal(sums.permitted, torch.tensor([ends_of(row) for row in allowed[0].any(0)]))
    again = sums_of_pattern(pattern[0], allowed[0].expand(pattern.shape[1:]), groups=groups, valid=valid, block=block)
    check(again, whole(pattern[0], counted, groups, block))


def test_an_additive_mask_hides_cells_and_is_added_to_the_others() -> None:
    q, k, v = inputs(N, 2)
    added = torch.randn(1, 6, N, N, generator=torch.Generator().manual_seed(1))
    terms = Terms(D**-0.5, added=added.masked_fill(~CAUSAL, torch.finfo(torch.float32).min))
    z, pattern = attend(q, k, v, terms, SILENT)
    found, sums = attend_with_sums(q[0], k[0], v[0], terms)
    wanted = whole(pattern[0], torch.ones(N), torch.zeros(N).long(), 128)
    check(sums, {name: value for name, value in wanted.items() if name != "between"})
    assert torch.allclose(found, z[0], rtol=0, atol=1e-5)


def test_a_lazy_mask_is_computed_for_a_few_queries_at_a_time() -> None:
    q, k, v = inputs(N, 2)
    asked: list[int] = []

    def rows(begin: int, end: int) -> Tensor:
        asked.append(end - begin)
        return CAUSAL[:, :, begin:end]

    lazy = attend_with_sums(q[0], k[0], v[0], Terms(D**-0.5, allowed=LazyMask(rows)))
    dense = attend_with_sums(q[0], k[0], v[0], Terms(D**-0.5, allowed=CAUSAL))
    assert max(asked) <= 128
    assert torch.equal(lazy[0], dense[0])
    assert torch.equal(lazy[1].by_offset, dense[1].by_offset)


def test_a_query_without_a_permitted_key_has_no_weights() -> None:
    q, k, v = inputs(N, 2)
    allowed = CAUSAL.clone()
    allowed[..., 5, :] = False
    z, sums = attend_with_sums(q[0], k[0], v[0], Terms(D**-0.5, allowed=allowed, sinks=torch.zeros(6)))
    assert not z[:, 5].any()
    assert (sums.log_normaliser[:, 5] == -math.inf).all()
    assert not sums.entropy[:, 5].any()
    assert torch.allclose(sums.received.sum(-1), sums.by_offset.sum(-1), rtol=1e-5)
    assert not Kept(q[0], k[0], Terms(D**-0.5, allowed=allowed)).weights(sums, slice(5, 6), slice(0, N)).any()


def test_a_pattern_with_weights_below_zero_or_nan_is_refused() -> None:
    pattern = torch.full((2, 3, 3), 1 / 3)
    pattern[0, 1, 2] = math.nan
    with pytest.raises(InputError, match="below 0 or NaN"):
        sums_of_pattern(pattern, torch.ones(2, 3, 3, dtype=torch.bool))
