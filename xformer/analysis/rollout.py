"""Attention rollout: how much of each input token could have reached a position through all layers so far.

    Ā = ½ · mean over heads of A + ½ · I          half of a stream passes by each attention in the residual connection
    R_l = Ā_l R_{l−1},   R_0 = I                  (Abnar & Zuidema 2020, arXiv:2005.00928, §3)

It follows the patterns only: what values, norms and feed-forward layers do to the information is not in it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import EditError
from xformer.trace import Trace


def rollout(trace: Trace, stack: str | None = None, item: int = 0) -> Float[Tensor, "layer query key"]:
    """R after each layer of a stack ("encoder" or "decoder", the model's only one by default); rows sum to 1.

    A row that may look at nothing counts as looking at itself. Raises `EditError` when the trace has no such stack.
    """
    sites = [site for site in trace.sites() if not site.is_cross]
    stack = stack or sites[0].stack
    paths = [site.path for site in sites if site.stack == stack]
    if not paths:
        raise EditError(f"This trace has no stack {stack!r}; its attention layers are {trace.attention_layers()}.")
    pattern = torch.stack([trace[f"{path}.pattern"][item].mean(dim=0) for path in paths])  # [layer, query, key]
    identity = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
    empty = pattern.sum(dim=-1, keepdim=True) == 0
    step = 0.5 * torch.where(empty, identity, pattern) + 0.5 * identity
    reached, layers = identity, []
    for one in step:
        reached = one @ reached  # [query, key]
        layers.append(reached)
    return torch.stack(layers)
