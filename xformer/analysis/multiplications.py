"""What multi-head attention costs: its multiplications counted from the shapes, and by torch as it multiplies."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


def multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> dict[str, int]:
    """How often multi-head attention multiplies two numbers, from its shapes alone, part by part (biases, softmax left out)."""
    wide = n_heads * d_head
    return {
        "Q, K, V = X W": 3 * n * d_model * wide,
        "Q Kᵀ": n_heads * n * n * d_head,
        "A V": n_heads * n * n * d_head,
        "out = Z W_O": n * wide * d_model,
    }


def measured_multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> int:
    """The same number, counted by torch while the multiplications are carried out (on shapes without numbers in them).

    A FLOP count takes each multiplication and its addition for two.
    """

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    with FlopCounterMode(display=False) as counter:
        x = tensor(n, d_model)
        q, k, v = (x @ tensor(d_model, n_heads * d_head) for _ in "qkv")
        q, k, v = (y.view(n, n_heads, d_head).transpose(0, 1) for y in (q, k, v))  # [head, pos, d_head]
        z = (q @ k.mT).softmax(dim=-1) @ v  # [head, pos, d_head]
        _ = z.transpose(0, 1).reshape(n, n_heads * d_head) @ tensor(n_heads * d_head, d_model)
    return counter.get_total_flops() // 2


def attention_costs(*, n_tokens: int, d_model: int, n_heads: int) -> pd.DataFrame:
    """One head, h heads that share d_model, and h heads each as wide as d_model: multiplications by part, and as measured.

    Columns: heads, part, count, measured (of the whole layer).
    """
    kinds = {
        "one head of d": (1, d_model),
        "h heads of d/h": (n_heads, d_model // n_heads),
        "h heads of d": (n_heads, d_model),
    }
    rows = []
    for name, (heads, width) in kinds.items():
        measured = measured_multiplications(n_tokens, d_model, heads, width)
        rows += [
            (name, part, count, measured) for part, count in multiplications(n_tokens, d_model, heads, width).items()
        ]
    return pd.DataFrame(rows, columns=["heads", "part", "count", "measured"])
