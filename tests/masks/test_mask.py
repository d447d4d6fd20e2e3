"""Masks of any origin have the cells that one call per cell gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from tests.masks.zoo import zoo
from xformer import masks
from xformer.errors import InputError
from xformer.masks.bounds import NotFollowedError, block_states
from xformer.masks.mask import FunctionMask

NAMES = tuple(zoo(64))


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_those_of_flex_attention(name: str) -> None:
    known = zoo(64)[name]
    expected = create_mask(known.function, 1, 1, known.n, known.n, device="cpu")[0, 0]
    assert torch.equal(masks.as_mask(known.function, n_query=known.n).cells(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_blocks_are_those_of_their_cells(name: str) -> None:
    known = zoo(300)[name]
    mask = masks.as_mask(known.function, n_query=known.n)
    cells = mask.cells()
    for block in (128, 100, 7):
        expected = torch.tensor([[int(part.sum()) for part in rows.split(block, dim=1)] for rows in cells.split(block)])
        assert torch.equal(mask.counts(block=block), expected), block


OTHER = {
    "shifts": lambda b, h, q, k: (q >> 2) == (k >> 2),
    "bits": lambda b, h, q, k: (q & 6) == (k & 6),
    "not": lambda b, h, q, k: ~(q < k) ^ (k == 3),
    "two_positions": lambda b, h, q, k: (torch.arange(40 * 40).view(40, 40) % 3 == 0)[q, k],
    "clamped": lambda b, h, q, k: torch.minimum(q, k) * 2 - torch.maximum(q, k) // 3 < 9,
    "scaled": lambda b, h, q, k: (q * 0.7) > k,
    "divided": lambda b, h, q, k: (q / 3) <= (k + 1),
    "where": lambda b, h, q, k: torch.where(q < 9, k < 4, k >= q - 3),
    "stacked": lambda b, h, q, k: torch.stack([q >= k, q - k < 9]).all(),
    "negative_index": lambda b, h, q, k: (torch.arange(40) % 5)[q - 3] == k % 5,
    "reversed": lambda b, h, q, k: 5 - q < 3 - k,
    "constant": lambda b, h, q, k: True,
    "logical": lambda b, h, q, k: torch.logical_or(q, k) & torch.logical_not(q - k),
    "negative_remainder": lambda b, h, q, k: (k - q) % 7 < 3,
    "table_of_floats": lambda b, h, q, k: torch.linspace(0, 1, 40)[q] >= torch.linspace(0, 1, 40)[k],
    "cast": lambda b, h, q, k: (q - k).clamp(0, 1).bool() | (q.float() == k.double()),
    "wrapped_index": lambda b, h, q, k: (torch.arange(40) > 36)[q - 3] & (k >= 0),
    "mixed_floats": lambda b, h, q, k: torch.full((40,), 0.1)[q] * torch.tensor(3.0, dtype=torch.float64)
    > torch.tensor(0.3, dtype=torch.float64),
    "power": lambda b, h, q, k: (q - k) ** 2 < 50,
    "overflow": lambda b, h, q, k: (q.to(torch.int8) * 5) >= (k.to(torch.int8) * 5),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other_operations_give_the_same_cells_by_blocks(name: str) -> None:
    function: Any = OTHER[name]
    expected = create_mask(lambda b, h, q, k: torch.as_tensor(function(b, h, q, k)), None, None, 40, 40, device="cpu")[
        0, 0
    ]
    mask = masks.as_mask(function, n_query=40)
    assert torch.equal(mask.cells(), expected)
    assert torch.equal(mask.counts(block=8), expected.view(5, 8, 5, 8).sum(dim=(1, 3)))


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_random_functions_never_contradict_their_cells(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-4, 5, (50,), generator=generator)
    a, b, c, d = (int(one) for one in torch.randint(1, 12, (4,), generator=generator))

    def function(_: Any, __: Any, q: Any, k: Any) -> Any:
        first = (table[q] * a - table[k]).abs() < b
        second = ((q - k * c) % (d + 1) <= b) | (torch.maximum(q // a, k) - torch.minimum(k // b, q) > c)
        return (first & second) ^ (q * k > a * b * c)

    expected = create_mask(function, None, None, 50, 50, device="cpu")[0, 0]
    starts = torch.arange(0, 50, 5)
    pairs = (starts[:, None], starts[:, None] + 4), (starts[None], starts[None] + 4)
    states, is_integer = block_states(function, [torch.tensor(0), torch.tensor(0)], *pairs)
    cells = expected.view(10, 5, 10, 5)
    assert is_integer
    assert bool(cells.any(dim=3).any(dim=1)[states == 0].logical_not().all())
    assert bool(cells.all(dim=3).all(dim=1)[states == 1].all())
    assert torch.equal(masks.as_mask(function, n_query=50).cells(), expected)


def test_bounds_decide_most_blocks_of_a_causal_mask() -> None:
    starts = torch.arange(0, 1024, 128)
    pairs = (starts[:, None], starts[:, None] + 127), (starts[None], starts[None] + 127)
    states, _ = block_states(masks.causal(), [torch.tensor(0)] * 2, *pairs)
    assert torch.equal(states, torch.ones(8, 8).tril(-1).to(torch.int8) - torch.eye(8).to(torch.int8))


def test_a_reduction_is_not_followed() -> None:
    pair = (torch.tensor([[0]]), torch.tensor([[3]]))
    with pytest.raises(NotFollowedError):
        block_states(lambda b, h, q, k: (q >= k).any(), [torch.tensor(0)] * 2, pair, pair)


def test_a_constant_with_axes_is_not_broadcast_by_mistake() -> None:
    limits = torch.tensor([2, 5, 9])
    with pytest.raises(InputError, match="returns one boolean for each cell"):
        masks.as_mask(lambda b, h, q, k: q < limits, n_query=3).cells()


def test_a_function_that_branches_on_positions_is_refused() -> None:
    with pytest.raises(InputError, match="without branching"):
        masks.as_mask(lambda b, h, q, k: q >= k if q > 3 else k == 0, n_query=8).cells()


def test_inputs_and_heads_reach_the_function() -> None:
    mask = masks.as_mask(lambda b, h, q, k: (q >= k) & (q - k <= h + 2 * b), n_query=6, n_batch=2, n_heads=3)
    assert int(mask.cells(1, 2)[5].sum()) == 5
    assert int(mask.cells(0, 0)[5].sum()) == 1
    with pytest.raises(InputError, match="head must be"):
        mask.cells(0, 3)


def test_a_score_function_forbids_by_minus_infinity_only() -> None:
    mask = masks.as_mask(lambda score, b, h, q, k: torch.where(q >= k, score - 1e6, -torch.inf), n_query=9)
    assert torch.equal(mask.cells(), torch.ones(9, 9).tril().bool())
    assert isinstance(mask, FunctionMask)
    assert mask.is_score


def _block_mask() -> BlockMask:
    return create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 40), 1, 1, 200, 200, device="cpu", BLOCK_SIZE=64)


def test_a_block_mask_means_what_the_kernel_computes() -> None:
    block_mask = _block_mask()
    assert masks.check(block_mask, masks.causal() & masks.window(40)).holds
    assert masks.check(block_mask, block_mask.mask_mod).holds
    assert torch.equal(
        masks.as_mask(block_mask).counts(block=64), masks.as_mask(block_mask.mask_mod, n_query=200).counts(block=64)
    )


def test_blocks_that_contradict_the_function_of_a_block_mask_are_found() -> None:
    made = _block_mask()
    numbers, indices = made.kv_num_blocks.clone(), made.kv_indices.clone()
    numbers[0, 0, 2] -= 1  # the kernel skips a block that the function allows
    broken = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=64, mask_mod=made.mask_mod, seq_lengths=(200, 200))
    found = masks.check(broken, made.mask_mod)
    assert found.n_leaks == 0
    assert found.n_losses > 0
    assert found.first is not None
    assert found.first[2] // 64 == 2
    full = torch.full_like(numbers, 1)
    unmasked = BlockMask.from_kv_blocks(
        made.kv_num_blocks,
        indices,
        full,
        torch.full_like(indices, 3),
        BLOCK_SIZE=64,
        mask_mod=made.mask_mod,
        seq_lengths=(200, 200),
    )  # a block that is listed as full is not masked
    assert masks.check(unmasked, made.mask_mod).first == (0, 0, 0, 192)


def test_tensors_are_boolean_or_additive() -> None:
    cells = torch.ones(5, 5).tril().bool()
    additive = torch.zeros(5, 5).masked_fill(~cells, torch.finfo(torch.float32).min)
    for tensor in (cells, cells[None], cells[None, None], additive, additive.bfloat16()):
        assert torch.equal(masks.as_mask(tensor).cells(), cells)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (torch.ones(3), "got shape"),
        (torch.eye(3), "ambiguous"),
        (torch.eye(3).long(), "mask.bool\\(\\)"),
        (torch.full((3, 3), torch.nan), "NaN"),
        ("causal", "A mask is a tensor"),
        (lambda q, k: q >= k, "takes 2 arguments"),
    ],
)
def test_what_is_no_mask_is_refused(source: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        masks.as_mask(source, n_query=3)


def test_a_function_without_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="give n_query="):
        masks.as_mask(masks.causal())


def test_a_rule_for_more_keys_than_queries_needs_the_first_query() -> None:
    with pytest.raises(InputError, match="first_query= must say"):
        masks.as_mask(masks.causal(), n_query=2, n_key=6)
    assert masks.as_mask(masks.causal(), n_query=2, n_key=6, first_query=4).cells().sum(dim=1).tolist() == [5, 6]


@pytest.mark.parametrize("span", [(3, 3), (0, 9), (-1, 2), 4])
def test_ranges_outside_the_mask_are_refused(span: Any) -> None:
    with pytest.raises(InputError, match="queries must be"):
        masks.as_mask(masks.causal(), n_query=8).cells(queries=span)
