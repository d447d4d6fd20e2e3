"""Masks that people use, written as mask functions from their published descriptions, each with the rule that it follows.

The first fifteen are the kinds in the list of attention-gym; the others are the mask functions of Transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils

from xformer.masks import (
    Rule,
    bidirectional,
    causal,
    chunked,
    dilated,
    documents,
    everywhere,
    neighbourhood,
    padding,
    prefix,
    sinks,
    window,
)


@dataclass(frozen=True)
class Known:
    """A mask function or score function for `n` positions, and its rule; None if no rule of ours makes it."""

    n: int
    function: Callable[..., Any]
    rule: Rule | None
    text: str = ""


def lengths_of(n: int, seed: int = 0) -> list[int]:
    """Return the lengths of random documents that fill n positions."""
    generator = torch.Generator().manual_seed(seed)
    lengths, left = [], n
    while left:
        lengths.append(min(left, int(torch.randint(max(2, n // 40), max(4, n // 6), (), generator=generator))))
        left -= lengths[-1]
    return lengths


def zoo(n: int) -> dict[str, Known]:
    """Return the masks for about `n` positions; images take the largest square."""
    lengths = lengths_of(n)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    inside = torch.cat([torch.arange(length) for length in lengths])
    width, kernel = int(n**0.5), 3 if n < 200 else 7
    half, square = kernel // 2, width**2
    w, p, step = n // 8, n // 5, n // 6
    valid, right = torch.arange(n) >= n // 7, torch.arange(n) < n - n // 7
    blocks = [(at, at + n // 10) for at in range(n // 8, n - n // 10, n // 4)]
    block_of = torch.full((n,), -1)
    for number, (first, stop) in enumerate(blocks):
        block_of[first:stop] = number
    slopes = torch.exp2(-torch.arange(1.0, 9.0))
    tile = max(2, n // 16)
    table = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.3
    no_padding = torch.zeros(1, dtype=torch.long)
    utils: Any = masking_utils

    def image(position: Any) -> tuple[Any, Any]:
        return position // width, position % width

    def natten(b: Any, h: Any, q: Any, k: Any) -> Any:
        (row, column), (key_row, key_column) = image(q), image(k)
        row, column = row.clamp(half, width - 1 - half), column.clamp(half, width - 1 - half)
        return ((row - key_row).abs() <= half) & ((column - key_column).abs() <= half)

    def cut_natten(b: Any, h: Any, q: Any, k: Any) -> Any:
        (row, column), (key_row, key_column) = image(q), image(k)
        return ((row - key_row).abs() <= half) & ((column - key_column).abs() <= half)

    return {
        "causal": Known(n, lambda b, h, q, k: q >= k, causal(), "causal"),
        "sliding_window": Known(
            n, lambda b, h, q, k: (q >= k) & (q - k <= w), causal() & window(w + 1), f"causal, window {w + 1}"
        ),
        "prefix_lm": Known(n, lambda b, h, q, k: (k < p) | (q >= k), causal() | prefix(p)),
        "document": Known(n, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), causal() & documents(lengths=lengths)),
        "document_bidirectional": Known(n, lambda b, h, q, k: ids[q] == ids[k], documents(lengths=lengths)),
        "document_sliding_window": Known(
            n,
            lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k) & (q - k < tile),
            causal() & window(tile) & documents(lengths=lengths),
        ),
        "natten": Known(square, natten, neighbourhood(width, width, kernel)),
        "natten_cut": Known(square, cut_natten, neighbourhood(width, width, kernel, clamped=False)),
        "dilated_sliding_window": Known(
            n,
            lambda b, h, q, k: (q >= k) & (q - k < w) & ((q - k) % 2 == 0),
            causal() & window((w - 1) // 2 * 2 + 1) & dilated(2),
        ),
        "attention_sinks": Known(
            n, lambda b, h, q, k: (q >= k) & ((q - k < w) | (k < 4)), causal() & (window(w) | sinks(4))
        ),
        "global_tokens": Known(
            n,
            lambda b, h, q, k: ((q - k).abs() <= w) | (q == 0) | (k == 0),
            window(w + 1, ahead=w + 1) | everywhere([0]),
        ),
        "transfusion": Known(
            n,
            lambda b, h, q, k: (q >= k) | ((block_of[q] == block_of[k]) & (block_of[q] >= 0)),
            causal() | bidirectional(within=blocks),
        ),
        "alibi": Known(n, lambda score, b, h, q, k: score + slopes[h] * (k - q), bidirectional(), "full"),
        "alibi_causal": Known(
            n, lambda score, b, h, q, k: torch.where(q >= k, score + slopes[h] * (k - q), -torch.inf), causal()
        ),
        "tanh_softcap": Known(n, lambda score, b, h, q, k: 20 * torch.tanh(score / 20), bidirectional()),
        "random_blocks": Known(n, lambda b, h, q, k: table[q * 61 // n, k * 61 // n] | (q == k), None),
        "transformers_causal": Known(n, utils.causal_mask_function, causal()),
        "transformers_bidirectional": Known(n, utils.bidirectional_mask_function, bidirectional()),
        "transformers_sliding_window": Known(n, utils.sliding_window_causal_mask_function(w), causal() & window(w)),
        "transformers_sliding_window_bidirectional": Known(
            n, utils.sliding_window_bidirectional_mask_function(w), window(w + 1, ahead=w + 1)
        ),
        "transformers_chunked": Known(
            n, utils.chunked_causal_mask_function(step, no_padding), causal() & chunked(step)
        ),
        "transformers_chunked_left_padding": Known(
            n,
            utils.and_masks(
                utils.chunked_causal_mask_function(step, torch.tensor([n // 7])),
                utils.padding_mask_function(valid[None]),
            ),
            causal() & chunked(step, left_padding=n // 7) & padding(valid),
        ),
        "transformers_blocks": Known(
            n,
            utils.or_masks(utils.causal_mask_function, utils.blockwise_overlay(block_of[None])),
            causal() | bidirectional(within=blocks),
        ),
        "transformers_window_and_blocks": Known(
            n,
            utils.or_masks(utils.sliding_window_causal_mask_function(w), utils.blockwise_overlay(block_of[None])),
            (causal() & window(w)) | bidirectional(within=blocks),
        ),
        "transformers_packed": Known(
            n,
            utils.packed_sequence_compatibility_function(utils.causal_mask_function, inside[None], ids[None]),
            causal() & documents(lengths=lengths),
        ),
        "transformers_packed_window": Known(
            n,
            utils.packed_sequence_compatibility_function(
                utils.sliding_window_causal_mask_function(tile), inside[None], ids[None]
            ),
            causal() & window(tile) & documents(lengths=lengths),
        ),
        "transformers_right_padding": Known(
            n,
            utils.and_masks(utils.causal_mask_function, utils.padding_mask_function(right[None])),
            causal() & padding(right),
        ),
        "transformers_left_padding": Known(
            n,
            utils.and_masks(utils.causal_mask_function, utils.padding_mask_function(valid[None])),
            causal() & padding(valid),
        ),
        "transformers_left_padding_window": Known(
            n,
            utils.and_masks(utils.sliding_window_causal_mask_function(w), utils.padding_mask_function(valid[None])),
            causal() & window(w) & padding(valid),
        ),
        "transformers_encoder_padding": Known(
            n,
            utils.and_masks(utils.bidirectional_mask_function, utils.padding_mask_function(right[None])),
            padding(right),
        ),
        "transformers_offset": Known(n, utils.add_offsets_to_mask_function(utils.causal_mask_function, 3, 3), causal()),
        "own_key_only": Known(n, lambda b, h, q, k: q == k, window(1, ahead=1)),
        "not_the_own_key": Known(n, lambda b, h, q, k: (q > k) | (q == 0) & (k == 0), None),
    }
