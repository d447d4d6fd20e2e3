"""Position numbers with gaps, so that a model that is trained on short inputs has met every number of a long one.

    1 2 3 4 5   →   4 9 10 21 33        a random growing choice of as many numbers

A model knows the positions that it was trained on. With 0, 1, 2, … an input of fifteen tokens never shows it number 40, and it
fails there; with numbers drawn anew for each sequence only their order and their equality mean something, and all of them come
up (Ruoss et al. 2023, arXiv:2305.16843). Numbers counted from the end are drawn alike: the last token's is the first's.

How far the numbers are spread is drawn too, from not at all: what the model reads later has none missing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.layers.layout import Layout
from xformer.tasks import Batch


def with_random_positions(batch: Batch, max_len: int, draw: torch.Generator) -> Batch:
    """The batch with other position numbers, below `max_len`; an encoder-decoder's two sides draw their own."""
    target = batch.target_layout
    return replace(
        batch,
        layout=spread(batch.layout, max_len, draw),
        target_layout=None if target is None else spread(target, max_len, draw),
    )


def spread(layout: Layout, max_len: int, draw: torch.Generator) -> Layout:
    """The same sequences at other numbers: the i-th token of a sequence gets the i-th of its numbers."""
    positions, mirrored = layout.positions, layout.mirrored
    whole = torch.ones_like(positions) if layout.segments is None else layout.segments  # [batch, pos]
    for segment in range(1, int(whole.max()) + 1):
        inside = whole == segment  # [batch, pos]
        numbers = _numbers(inside.sum(dim=-1), max_len, draw)  # [batch, max_len]
        positions, mirrored = (
            torch.where(inside, numbers.gather(-1, index), now)
            for index, now in ((layout.positions, positions), (layout.mirrored, mirrored))
        )
    return replace(layout, positions=positions, mirrored=mirrored)


def _numbers(lengths: Int[Tensor, " batch"], max_len: int, draw: torch.Generator) -> Int[Tensor, "batch number"]:
    """For each length so many different numbers in growing order, the first of their row; the rest of it is filler."""
    every = torch.arange(max_len, device=lengths.device)  # [number]
    chance = torch.rand(len(lengths), max_len + 1, generator=draw, device=lengths.device)
    end = lengths + (chance[:, -1] * (max_len + 1 - lengths)).long()  # all numbers are below it
    order = chance[:, :-1].masked_fill(every >= end[:, None], 2.0).argsort(dim=-1)
    is_chosen = order.argsort(dim=-1) < lengths[:, None]
    return torch.where(is_chosen, every, max_len - 1).sort(dim=-1).values
