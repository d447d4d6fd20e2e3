"""Attention rollout: how much of each input token could have reached a position through all layers so far.

    Ā = ½ · mean over heads of A + ½ · I          half of a stream passes by each attention in the residual connection
    R_l = Ā_l R_{l−1},   R_0 = I                  (Abnar & Zuidema 2020, arXiv:2005.00928, §3)

It follows the patterns only: what values, norms and feed-forward layers do to the information is not in it.
"""

from __future__ import annotations

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
    reached = rollout_matrices(reading.trace, stack).numpy(force=True)  # [layer, query, key]
    names = np.array([f"{position} {label}" for position, label in enumerate(reading.tokens_of(stack))])
    size = -(-len(names) // MOST_TOKENS)
    if size > 1:
        begins = np.arange(0, len(names), size)
        counts = np.diff(np.append(begins, len(names)))  # [block]
        reached = np.add.reduceat(np.add.reduceat(reached, begins, axis=1) / counts[:, None], begins, axis=2)
        names = np.array([f"{names[at]} … {names[min(at + size, len(names)) - 1]}" for at in begins])
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
    sites = [site for site in trace.sites() if not site.is_cross]
    stack = stack or sites[0].stack
    paths = [site.path for site in sites if site.stack == stack]
    if not paths:
        raise EditError(f"This trace has no stack {stack!r}; its attention layers are {trace.attention_layers()}.")
    pattern = torch.stack([trace[f"{path}.pattern"][0].mean(dim=0) for path in paths])  # [layer, query, key]
    identity = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
    empty = pattern.sum(dim=-1, keepdim=True) == 0
    step = 0.5 * torch.where(empty, identity, pattern) + 0.5 * identity
    reached, layers = identity, []
    for one in step:
        reached = one @ reached  # [query, key]
        layers.append(reached)
    return torch.stack(layers)
