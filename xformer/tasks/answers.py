"""The right answers: each toy task as a pure function of a padded batch of sequences, one line of tensor algebra each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.config import TaskName

Sequences = Int[Tensor, "batch pos"]
Lengths = Int[Tensor, " batch"]


def reverse(symbols: Sequences, lengths: Lengths) -> Sequences:
    """answer[i] = symbols[length − 1 − i]; cells past the length are arbitrary."""
    index = torch.arange(symbols.shape[1], device=symbols.device)  # [pos]
    return symbols.gather(1, (lengths[:, None] - 1 - index).clamp(min=0))


def sort(symbols: Sequences, lengths: Lengths) -> Sequences:
    """The symbols in ascending order; cells past the length are arbitrary."""
    index = torch.arange(symbols.shape[1], device=symbols.device)  # [pos]
    last = torch.iinfo(symbols.dtype).max
    in_order = symbols.masked_fill(index >= lengths[:, None], last).sort(dim=1).values
    return in_order.masked_fill(in_order == last, 0)


def copy(symbols: Sequences, lengths: Lengths) -> Sequences:
    """The symbols as they are."""
    return symbols


ANSWERS: dict[TaskName, Callable[[Sequences, Lengths], Sequences]] = {"reverse": reverse, "sort": sort, "copy": copy}
