"""Attention rollout: how much of each input token could have reached a position through all layers so far.

    Ā = ½ · mean over heads of A + ½ · I          half of a stream passes by each attention in the residual connection
    R_l = Ā_l R_{l−1},   R_0 = I                  (Abnar & Zuidema 2020, arXiv:2005.00928, §3)

It follows the patterns only: what values, norms and feed-forward layers do to the information is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import EditError
from xformer.reading import Reading
from xformer.trace import Trace

MOST_TOKENS = 48
"""So many tokens a side are told apart."""


def rollout(reading: Reading, *, stack: str | None = None) -> pd.DataFrame:
    """One row for each cell: after which layer, from 1, how much of the token at `key` could have reached `query`.

    Of more than `MOST_TOKENS` tokens, neighbours are taken together: what any of the keys could have given the queries on
    average, so that rows still sum to 1. Columns: layer, query, key, share.
    """
    names = np.array([f"{position} {label}" for position, label in enumerate(reading.tokens_of(stack))])
    size = -(-len(names) // MOST_TOKENS)
    begins = np.arange(0, len(names), size)
    counts = np.diff(np.append(begins, len(names)))[:, None]  # [block, 1]
    layers = (one.numpy(force=True) for one in _reached(reading.trace, stack))  # [query, key] each
    if size > 1:
        layers = (np.add.reduceat(np.add.reduceat(one, begins, axis=0) / counts, begins, axis=1) for one in layers)
        names = np.array([f"{names[at]} … {names[min(at + size, len(names)) - 1]}" for at in begins])
    reached = np.stack(list(layers))  # [layer, query, key]
    layer, query, key = np.meshgrid(*(np.arange(size) for size in reached.shape), indexing="ij")
    return pd.DataFrame(
        {
            "layer": (layer + 1).ravel(),
            "query": names[query.ravel()],
            "key": names[key.ravel()],
            "share": reached.ravel(),
        }
    )


def rollout_matrices(trace: Trace, stack: str | None = None) -> Float[Tensor, "layer query key"]:
    """R after each layer of a stack ("encoder" or "decoder", the model's only one by default); rows sum to 1.

    A row that may look at nothing counts as looking at itself. Raises `EditError` when the trace has no such stack.
    """
    return torch.stack(list(_reached(trace, stack)))


def _reached(trace: Trace, stack: str | None) -> Iterator[Float[Tensor, "query key"]]:
    """The same, one layer at a time."""
    sites = [site for site in trace.sites() if not site.is_cross]
    stack = stack or sites[0].stack
    paths = [site.path for site in sites if site.stack == stack]
    if not paths:
        raise EditError(f"This trace has no stack {stack!r}; its attention layers are {trace.attention_layers()}.")
    reached = None
    for path in paths:
        pattern = trace[f"{path}.pattern"][0].mean(dim=0)  # [query, key]
        identity = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
        step = 0.5 * torch.where(pattern.sum(dim=-1, keepdim=True) == 0, identity, pattern) + 0.5 * identity
        reached = step if reached is None else step @ reached
        yield reached
