"""How a model that somebody else made knows where a token is, as far as one run of it showed.

    added      a vector for each position, a table of the model's own                         GPT-2, BERT, OPT
    turned     the angles by which queries and keys are turned (of each pair, −π to π)        Llama, GPT-NeoX
    biased     what is added to the score of a query and a key, by how far apart they are      T5

Only the positions of that run are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import UnavailableError
from xformer.reading import Reading

Found = Literal["added", "turned", "biased"]


def found_positions(reading: Reading, stack: str | None = None) -> tuple[Found, Tensor]:
    """Which of the three, and its numbers: [pos, d_model], [pos, pair] or [head, query, key].

    Raises `UnavailableError` where none was found.
    """
    stack = (stack or "encoder") if reading.is_pair else reading.output_stack
    at = f"{stack}." if reading.is_pair else ""
    if f"{at}pos_embed" in reading:
        table = reading[f"{at}pos_embed"]
        return "added", table if table.dim() == 2 else table[0]
    for name in reading:
        if name.rpartition(".")[2].startswith("pos_angles"):
            angles = reading[name]
            angles = angles.reshape(-1, *angles.shape[-2:])[0]
            half = angles.shape[1] // 2
            return "turned", angles[:, :half] if angles[:, :half].equal(angles[:, half:]) else angles
    for name in reading:
        if name.startswith(stack) and name.endswith(".pos_bias") and "cross" not in name:
            return "biased", reading[name][0]
    raise UnavailableError(
        f"Nothing was found in {reading.subject.name} that tells it where a token is: no vectors that are added, no angles and "
        "no biases. What it has may sit where it cannot be seen, or its mask is all there is."
    )


def found_values(reading: Reading, positions: Sequence[int] | None = None, stack: str | None = None) -> pd.DataFrame:
    """What is done at each position, as `position_values` has it. Raises `UnavailableError` where scores are biased."""
    how, found = found_positions(reading, stack)
    if how == "biased":
        raise UnavailableError(f"{reading.subject.name} adds to its scores; nothing is done at a position itself.")
    shown = [at for at in (range(len(found)) if positions is None else positions) if at < len(found)]
    values = found[shown].double()
    width = values.shape[1]
    table = pd.DataFrame({"position": np.repeat(shown, width)})
    if how == "added":
        return table.assign(dimension=np.tile(np.arange(width), len(shown)), value=values.flatten().numpy(force=True))
    return table.assign(
        pair=np.tile(np.arange(width), len(shown)),
        angle=values.flatten().numpy(force=True),
        cos=values.cos().flatten().numpy(force=True),
        sin=values.sin().flatten().numpy(force=True),
    )


def found_biases(bias: Float[Tensor, "head query key"]) -> pd.DataFrame:
    """Head, offset = key − query, and the bias there, the mean of its pairs, which are alike where only distance counts."""
    n_query, n_key = bias.shape[1:]
    offset = (torch.arange(n_key)[None, :] - torch.arange(n_query)[:, None]).flatten()  # [query · key]
    offsets = offset.unique()
    place = torch.searchsorted(offsets, offset)
    sums = torch.zeros(len(bias), len(offsets), dtype=torch.float64)
    sums.index_add_(1, place, bias.double().flatten(1))
    mean = sums / place.bincount()
    return pd.DataFrame(
        {
            "head": np.repeat(np.arange(len(bias)), len(offsets)),
            "offset": np.tile(offsets.numpy(), len(bias)),
            "bias": mean.flatten().numpy(),
        }
    )


def turned_products(angles: Float[Tensor, "pos pair"]) -> Float[Tensor, "query key"]:
    """q · k of one vector turned to two positions, of length 1 and with the same share in every pair."""
    c, s = angles.double().cos(), angles.double().sin()
    return (c @ c.T + s @ s.T) / angles.shape[1]
