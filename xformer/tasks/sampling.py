"""Fresh examples for ever: drawn in whole batches on the device, each batch a function of (seed, step) and nothing else.

There is no data set and no position in one, so resuming at a step needs only the step. Examples are drawn for many steps at
once, because drawing them one step at a time would cost more than some models' whole step.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

Purpose = Literal["train", "held-out", "test", "init", "dropout", "positions"]
_STREAM: dict[Purpose, int] = {"train": 1, "held-out": 2, "test": 3, "init": 4, "dropout": 5, "positions": 6}


def generator(seed: int, purpose: Purpose, chunk: int, device: torch.device | str) -> torch.Generator:
    """A generator of its own for each (seed, purpose, chunk): neighbouring seeds give unrelated numbers."""
    state = np.random.SeedSequence([seed, _STREAM[purpose], chunk]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0] >> np.uint64(1)))


def sequences(
    n: int, *, symbols: int, min_len: int, max_len: int, paired: bool, draw: torch.Generator
) -> tuple[Int[Tensor, "example pos"], Int[Tensor, " example"]]:
    """n sequences of symbols 1 … `symbols` and their lengths, uniform on [min_len, max_len].

    With `paired`, the lengths of each two neighbours add up to min_len + max_len, so that they fill a row (n must be even).
    """
    cells = torch.randint(1, symbols + 1, (n, max_len), generator=draw, device=draw.device)
    if not paired:
        return cells, torch.randint(min_len, max_len + 1, (n,), generator=draw, device=draw.device)
    first = torch.randint(min_len, max_len + 1, (n // 2,), generator=draw, device=draw.device)
    return cells, torch.stack((first, min_len + max_len - first), dim=1).flatten()


def each_once(n: int, size: int, *, draw: torch.Generator) -> Int[Tensor, " n"]:
    """n of the numbers 0 … size − 1 in random order, all of them before one comes twice."""
    rounds = [torch.randperm(size, generator=draw, device=draw.device) for _ in range(-(-n // size))]
    return torch.cat(rounds)[:n]
